"""Tables on a narrow screen: nothing that is shown on a wide one is broken, cut or left out."""

from __future__ import annotations

import re
from io import StringIO

import pytest
from rich.console import Console

from streamrace.reports.screen.console import Terminal
from streamrace.studies.table import Cell, Column, Table

PLACE = "torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py:447"
LONGER = f"/some/where/projects/a-large-model/site-packages/{PLACE}"
PROSE = f"write-read: write by all_gather ({PLACE} DefaultAllGather.__call__) on stream 34; read by copy_ and 3 more"


def shown(monkeypatch: pytest.MonkeyPatch, table: Table, width: int = 80) -> list[str]:
    monkeypatch.setenv("COLUMNS", str(width))
    said = StringIO()
    Terminal(file=said).print(table)
    return [line.rstrip() for line in said.getvalue().splitlines()]


@pytest.mark.parametrize("place", [PLACE, LONGER])
def test_a_path_is_whole_and_long_texts_stand_below_their_row(monkeypatch: pytest.MonkeyPatch, place: str) -> None:
    row = [Cell(place, "", "stream.wait_event, 36 times"), Cell("carries load", "bad", "and live"), "135.9 us", PROSE]
    lines = shown(monkeypatch, Table("Each line's waits", ["line", "verdict", "delay", "without it"], [row]))
    assert lines[0] == "Each line's waits"
    assert any(line.startswith(place) for line in lines)
    assert all(len(line) <= 80 or line.strip(" ,") == place for line in lines)
    words = " ".join(" ".join(lines).split())
    assert f"without it: {PROSE}" in words
    assert {"carries", "load", "live", "135.9", "us", "stream.wait_event", "36"} <= {*re.split("[ ,;]+", words)}


def test_no_figure_loses_its_unit(monkeypatch: pytest.MonkeyPatch) -> None:
    columns = ["fix", "race", *(Column(f"llama-2-7b, {rate} Gbit/s", "{:+,.2f} ms") for rate in (12.5, 100, 400, 800))]
    row = ["module-event", Cell("68, 0 manifested", "bad"), 1248.69, 231.56, 30.96, 2084.72, "after each copy " * 6]
    lines = shown(monkeypatch, Table("", [*columns, "where, and what"], [row]))
    assert max(map(len, lines)) <= 80
    (figures,) = [line for line in lines if line.startswith("module-event")]
    assert re.split(" {2,}", figures)[1:] == ["+1,248.69 ms", "+231.56 ms", "+30.96 ms", "+2,084.72 ms"]
    narrow = " ".join(" ".join(shown(monkeypatch, Table("", [*columns, "where, and what"], [row]), 40)).split())
    assert "+1,248.69 ms" in narrow and "llama-2-7b, 400 Gbit/s: +30.96 ms" in narrow and "68, 0 manifested" in narrow


def test_names_and_values_stay_apart_where_the_screen_is_narrow() -> None:
    said = StringIO()

    Console(file=said, width=40).print(Table("", ["", ""], [("a name of some length", "word " * 20)], sides=True))

    first = said.getvalue().splitlines()[0]
    assert first.startswith("a name of some length word")
