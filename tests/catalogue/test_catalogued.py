"""An entry is as expected where both sides are, and everything else is said: nothing passes for want of a look."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from streamrace.detectors import Race
from streamrace.detectors.order.races import Side
from streamrace.detectors.places import between
from streamrace.reports.data.catalogue import CatalogueFile, RanSide
from streamrace.reports.data.schema import ReportError
from streamrace.repro.sessions.catalogue_run import differs, unclean
from streamrace.scenarios.catalogue.entry import Entry
from tests.catalogue.test_entries import HEAD, written
from tests.warm import ROOT

PLACES = ["a.py:first", "a.py:second"]


def entry(**changed: Any) -> Entry:
    base: dict[str, Any] = {
        "path": Path("own/a.py"), "title": "t", "mechanism": "m", "threads": [], "kind": "race", "known": "k",
        "affected": {"packages": ["a==1"]}, "fixed": {"packages": ["a==2"]}, "places": PLACES, "harm": "harmful",
    }  # fmt: skip
    return Entry(**base | changed)


def ran(verdict: str, **more: Any) -> RanSide:
    return RanSide(ran="a 1", verdict=verdict, sentence=f"{verdict}.", **more)


SEEN = {"races": 1, "accesses": "write-read", "lines": ["write by copy_ (a.py:1 first)", "read by cat (a.py:9 second)"]}


def test_a_race_is_as_expected_with_its_pair_and_its_harm_alone() -> None:
    assert differs(entry(), ran("race", harm="harmful", **SEEN)) == []
    assert differs(entry(), ran("race", harm="benign", **SEEN)) == ["the race is benign, not harmful"]
    assert differs(entry(), ran("race", **SEEN)) == ["the race is not confirmed, not harmful"]
    assert differs(entry(), ran("race", races=3)) == [
        "the race between a.py:first and a.py:second is not seen, though 3 others are"
    ]
    assert differs(entry(), ran("clean")) == ["the race between a.py:first and a.py:second is not seen"]
    assert differs(entry(), ran("unknown", failure="it was killed")) == [
        "the affected side has no verdict: it was killed"
    ]


def test_a_control_is_told_as_what_it_is_and_never_as_a_race() -> None:
    stale = entry(kind="stale", places=[], harm="")
    assert differs(stale, ran("stale")) == []
    assert differs(stale, ran("clean")) == ["the affected side is clean, not stale"]
    assert differs(entry(kind="bounds", places=[], harm=""), ran("wrong bounds")) == []
    assert differs(entry(kind="uninitialised", places=[], harm=""), ran("uninitialised")) == []
    assert differs(stale, ran("race", races=2)) == [
        "2 races on the affected side of an entry without one",
        "the affected side is race, not stale",
    ]


def test_a_hang_is_one_that_took_place_or_may() -> None:
    for kind, other in (("hang", "may-hang"), ("may-hang", "hang")):
        waits = entry(kind=kind, places=[], harm="")
        assert differs(waits, ran(kind)) == []
        assert differs(waits, ran(other)) == [f"the affected side is {other}, not {kind}"]
        assert differs(waits, ran(kind, races=1)) == ["1 races on the affected side of an entry without one"]


def test_a_fixed_side_is_clean_or_said() -> None:
    assert unclean(ran("clean")) == unclean(ran("fragile")) == []
    assert unclean(ran("race")) == ["the fixed side is race: race"]
    assert unclean(ran("unknown", failure="no such release")) == ["the fixed side has no verdict: no such release"]


def side(*functions: str) -> Side:
    from streamrace.detectors.order.races import Frame

    frames = tuple(Frame("lib/a.py", 10 + at, function) for at, function in enumerate(functions))
    return Side(access="write", kernel="aten::copy_", stream="s", stack=frames)


def test_a_race_lies_between_two_places_one_at_each_access() -> None:
    def race(first: Side, second: Side) -> Race:
        return Race("write-read", first, second, 1, 0, 0, (0,), (), ())

    there = race(side("Init.first", "outer"), side("inner", "second"))
    assert between(there, PLACES) and between(there, PLACES[::-1])
    assert between(there, ["a.py:Init.first", "a.py:11"])
    assert not between(race(side("first", "second"), side("other")), PLACES)
    assert not between(race(side("first"), side("first")), PLACES)
    assert between(race(side("first"), side("first")), ["a.py:first", "a.py:first"])
    assert between(race(side("Init.first (backward)"), side("second")), PLACES)
    assert not between(there, ["b.py:first", "a.py:second"])


PROGRAM = """
    import sys
    import torch
    from streamrace.detectors.values.answers import answer

    def product(a):
        return a @ a

    side = torch.cuda.Stream()
    a = torch.ones(4, 4, device="cuda")
    torch.cuda.synchronize()
    b = product(a)
    with torch.cuda.stream(side):
        if "--without" not in sys.argv:
            side.wait_stream(torch.cuda.default_stream())
        c = b.sum()
    torch.cuda.synchronize()
    answer("c", c * ("--half" not in sys.argv), c, [c * 0])
    print(c.item())
"""
ARGUMENTS = HEAD.replace('packages = ["deepspeed==0.13.4"]', 'arguments = ["WORD"]').replace(
    'fixed = { packages = ["deepspeed==0.13.5"] }', "ranks = 1"
)
RACE = (
    ARGUMENTS.replace("WORD", "--without")
    .replace("a.py:first", "a_b1.py:product")
    .replace("a.py:second", "a_b1.py:<module>")
)
STALE = "\n".join(
    line for line in ARGUMENTS.replace("WORD", "--half").splitlines() if not line.startswith(("places", "harm"))
).replace('"race"', '"stale"')


def catalogue(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [
        sys.executable,
        "-m",
        "streamrace",
        "catalogue",
        "--programs",
        str(folder),
        "--runs",
        str(folder / "runs"),
    ]
    return subprocess.run(
        [*command, *words], cwd=ROOT, capture_output=True, text=True, env={**os.environ, "COLUMNS": "150"}
    )


def test_the_command_runs_both_sides_and_says_what_is_not_as_expected(tmp_path: Path) -> None:
    for head, name in ((RACE, "own/a_b1.py"), (STALE.replace('"stale"', '"bounds"'), "own/c_d1.py")):
        path = written(tmp_path, head, name)
        path.write_text(path.read_text() + dedent(PROGRAM))
    done = catalogue(tmp_path)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "race (harmful) -> clean" in done.stdout
    assert "stale -> clean: NOT AS EXPECTED, the affected side is stale, not wrong bounds" in done.stdout
    race, stale = CatalogueFile.read(tmp_path / "runs/catalogue").entries
    assert race.affected and stale.affected
    assert race.affected.lines == ["write by mm (a_b1.py:20 product)", "read by sum (a_b1.py:29 <module>)"]
    assert race.affected.token.startswith("t1,0/0/aten::mm/1+")
    assert race.affected.token in race.affected.command
    assert race.differs == []
    assert stale.affected.evidence.startswith("c: 1 of 1 elements are wrong")
    page = (tmp_path / "runs/catalogue/report/index.html").read_text().replace("<wbr>", "")
    assert all(words in page for words in ("a_b1.py:20", "harmful", "NOT AS EXPECTED"))
    assert not [*(tmp_path / "runs").glob("catalogue/*/*/trace/*")]


def test_a_catalogue_of_somebody_else_is_read_with_care(tmp_path: Path) -> None:
    for text in (
        "{}",
        "[]",
        '{"format": "stream-race-catalogue", "version": 2}',
        '{"format": "stream-race-catalogue", "version": 1}',
    ):
        (tmp_path / "catalogue.json").write_text(text)
        with pytest.raises(ReportError):
            CatalogueFile.read(tmp_path)
