"""Stories of incidents: saved by ranks, read by someone else, made into a page."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import math
import os
import re
import subprocess
import sys
import tempfile
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from bokeh.resources import Resources
from safetensors.torch import load_file

from streamrace.detectors.live.finding import Cause, Finding, Kind, ProbePoint, ProbeResult
from streamrace.detectors.live.incident import (
    COLUMNS,
    Incident,
    IncidentError,
    check_writable,
    free_name,
    load,
    write,
    write_rank,
)
from streamrace.reports.pages.incident_page import page, write_page
from streamrace.repro.__main__ import main

ROOT = Path(__file__).resolve().parents[2]
WEIGHT = "model.layers.1.mlp.down_proj.weight"
MODULE = "model.layers.1.mlp.down_proj"
SECONDARY = ProbePoint(Kind.SECONDARY, MODULE, WEIGHT)
HOSTILE = (
    "<img src=x onerror=\"alert('1')\">",
    "</script><script>alert(1)</script>",
    "]]><!-- --></title></style></pre>",
    "&lt;script&gt; {{ 7 * 7 }} {% raw %} ${7} @{row}",
    "$$x^2$$ \\(x\\) \\[x\\]",
    "\u202edetrevni \u2066\u05d0\u05d1\u05d2",
    "line\r\nbreak \x00 null \ud800 half, with a comma",
    "x" * 10_000,
)


def finding(**changes: Any) -> Finding:
    story: dict[str, Any] = {
        "cause": Cause.RACE,
        "kind": Kind.SECONDARY,
        "step": 12,
        "micro_batch": 1,
        "phase": "backward",
        "order": 7,
        "rank": 1,
        "ranks": (0, 1),
        "module": MODULE,
        "parameter": WEIGHT,
        "part": 0,
        "nan": 3,
        "numel": 8,
        "low": -1.5,
        "high": 1.5,
        "evidence": ("It was read before its copy was done.",),
        "spread": ("backward of micro-batch 1: gradient of lm_head: 2 of 8 bad",),
    }
    return Finding(**{**story, **changes})


def probes(*names: str) -> list[ProbeResult]:
    """Three steps; in the last, the secondary partition has NaN. ``names``: further parameters, all bad."""
    seen = []
    for step in (10, 11, 12):
        bad = 3 if step == 12 else 0
        seen.append(ProbeResult(ProbePoint(Kind.OUTPUT, MODULE), step, 1, "forward", 1, 0, 0, 0, -4.0, 3.0, 8))
        seen.append(ProbeResult(ProbePoint(Kind.LOSS), step, 1, "forward", 2, 0, 0, 0, math.nan, math.nan, 1))
        seen.append(ProbeResult(SECONDARY, step, 1, "backward", 7, bad, 0, 0, -1.5, 1.5, 8))
        for order, name in enumerate(names, 8):
            point = ProbePoint(Kind.GRADIENT, name, name, name)
            seen.append(ProbeResult(point, step, 1, "backward", order, 0, 1, 2, 0.1, 1e-30, 8, beyond=True))
    return seen


def save(folder: Path, *, ranks: tuple[int, ...] = (0, 1), names: tuple[str, ...] = (), **changes: Any) -> Path:
    for rank in ranks:
        batch = {"input_ids": torch.arange(6).view(2, 3), "ids": ["a", "b"]}
        write_rank(folder, rank, probes=probes(*names), batch=batch, rng={"cpu": torch.get_rng_state()})
    write(folder, finding(**changes), world=2, configuration={"zero": {"stage": 3}}, versions={"torch": "2.13.0"})
    return folder


class Page(HTMLParser):
    """What a browser would see: elements, their attributes, scripts."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.scripts: list[str] = []
        self.words: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs

    def handle_data(self, data: str) -> None:
        if self.tags[-1:] == ["script"]:
            self.scripts.append(data)
        self.words.append(data)


def scripts(text: str) -> list[str]:
    return re.findall(r"<script>(.*?)</script>", text, re.DOTALL)


def unpacked(text: str) -> str:
    """What the page's scripts unpack and run: Bokeh's library, and what draws."""
    (packed,) = re.findall(r'<script type="text/plain" id="packed">(.*?)</script>', text)
    return gzip.decompress(base64.b64decode(packed)).decode()


def drawing(text: str) -> str:
    return unpacked(text).removeprefix("\n".join(Resources(mode="inline", components=["bokeh"]).js_raw))


# -- the folder ------------------------------------------------------------------------------------


def test_what_was_saved_is_what_is_read(tmp_path: Path) -> None:
    read = load(save(tmp_path / "it"))
    assert read.finding == finding()
    assert (read.world, read.missing) == (2, ())
    assert (read.configuration, read.versions) == ({"zero": {"stage": 3}}, {"torch": "2.13.0"})
    assert list(read.statistics) == [0, 1]
    assert repr(read.statistics[1]) == repr(probes())  # by text: NaN is not equal to itself
    table = pd.read_csv(tmp_path / "it" / "rank-0" / "statistics.csv")
    assert tuple(table.columns) == COLUMNS
    assert table["nan"].sum() == 3


def test_the_batch_and_the_random_state_come_back_bit_for_bit(tmp_path: Path) -> None:
    base = torch.arange(12.0).view(3, 4)
    odd = torch.tensor([math.nan, -0.0, math.inf], dtype=torch.bfloat16)
    batch = {
        "turned": base.t(),
        "part": base[1],
        "whole": base,
        "nested": {"pair": [odd, torch.tensor(7)]},
        "sparse": torch.eye(2).to_sparse(),
        "complex": torch.zeros(2, dtype=torch.complex64),
        "__metadata__": torch.zeros(1),
        "text": "a sentence",
        "thing": object,
    }
    state = torch.get_rng_state()
    write_rank(tmp_path, 3, probes=[], batch=batch, rng={"cpu": state})
    read = load_file(tmp_path / "rank-3" / "batch.safetensors")
    assert set(read) == {"turned", "part", "whole", "nested.pair.0", "nested.pair.1", "__metadata___"}
    assert torch.equal(read["turned"], base.t()) and torch.equal(read["part"], base[1])
    assert torch.equal(read["nested.pair.0"].view(torch.int16), odd.view(torch.int16))
    assert torch.equal(load_file(tmp_path / "rank-3" / "rng.safetensors")["cpu"], state)
    texts = json.loads((tmp_path / "rank-3" / "batch.json").read_text())
    assert set(texts) == {"sparse", "complex", "text", "thing"} and texts["text"] == "a sentence"
    assert not list(tmp_path.rglob("*.part"))


def test_a_configuration_that_json_cannot_hold_becomes_text(tmp_path: Path) -> None:
    class Silent:
        def __str__(self) -> str:
            raise RuntimeError("says nothing")

    endless: dict[str, Any] = {}
    endless["itself"] = endless
    configuration = {
        "dtype": torch.bfloat16,
        3: {1, 2},
        "inf": math.inf,
        "large": 10**5000,
        "silent": Silent(),
        "endless": endless,
        "kept": [None, True, 1, 0.5, "a"],
    }
    write(tmp_path, finding(rank=0), world=1, configuration=configuration, versions={})
    read = load(tmp_path).configuration
    assert read["dtype"] == "torch.bfloat16" and read["3"] == ["1", "2"] and read["inf"] == "inf"
    assert read["silent"] == "a Silent that has no text"
    assert read["kept"] == [None, True, 1, 0.5, "a"]


def test_an_incident_holds_no_password(tmp_path: Path) -> None:
    configuration = {"comet": {"api_key": "abc123", "project": "it"}, "pad_token": "<pad>", "password": ""}
    write(tmp_path, finding(rank=0), world=1, configuration=configuration, versions={})
    assert "abc123" not in (tmp_path / "incident.json").read_text()
    assert load(tmp_path).configuration == {
        "comet": {"api_key": "(left out)", "project": "it"},
        "pad_token": "<pad>",
        "password": "",
    }


def test_a_rank_that_died_is_missing_and_the_others_are_read(tmp_path: Path) -> None:
    save(tmp_path / "it", ranks=(0,))
    (tmp_path / "it" / "rank-1").mkdir()  # it died while it wrote
    read = load(tmp_path / "it")
    assert read.missing == (1,)
    assert list(read.statistics) == [0]


def test_names_are_free_ones(tmp_path: Path) -> None:
    names = []
    for _ in range(3):
        folder = free_name(tmp_path, finding())
        folder.mkdir()
        names.append(folder.name)
    assert names == ["incident-step12", "incident-step12-2", "incident-step12-3"]


# -- what is none ----------------------------------------------------------------------------------


def test_a_folder_that_is_not_there_or_is_another_s(tmp_path: Path) -> None:
    with pytest.raises(IncidentError, match="does not exist: give the folder of an incident"):
        load(tmp_path / "none")
    with pytest.raises(IncidentError, match="is not an incident, it has no incident.json"):
        load(tmp_path)
    (tmp_path / "incident.json").write_text('{"format": "weather"}')
    with pytest.raises(IncidentError, match="is not an incident, its incident.json is foreign"):
        load(tmp_path)


def test_a_newer_format_asks_for_an_update(tmp_path: Path) -> None:
    path = save(tmp_path / "it") / "incident.json"
    path.write_text(path.read_text().replace('"version": 1', '"version": 2', 1))
    with pytest.raises(IncidentError, match="has format version 2 and this release reads up to 1: update"):
        load(tmp_path / "it")


@pytest.mark.parametrize(
    "change",
    [
        lambda text: text[: len(text) // 2],
        lambda text: "[" * 100_000,
        lambda text: text.replace('"race"', '"weather"'),
        lambda text: text.replace('"step": 12', '"step": 1e999'),
        lambda text: text.replace('"step": 12', f'"step": {10**300}'),
        lambda text: text.replace('"world": 2', '"world": 9999999999'),
        lambda text: text.replace('"world": 2', '"world": 1'),
        lambda text: text.replace('"world"', '"word"'),
        lambda text: text.replace('"configuration": {', '"configuration": 0, "more": {'),
    ],
    ids=["cut", "deep", "cause", "infinite", "huge", "world", "rank", "key", "mapping"],
)
def test_a_head_that_was_tampered_with_is_damaged(tmp_path: Path, change: Any) -> None:
    path = save(tmp_path / "it") / "incident.json"
    path.write_text(change(path.read_text()))
    with pytest.raises(IncidentError, match=r"incident.json is damaged \(.*\): copy the incident again"):
        load(tmp_path / "it")


@pytest.mark.parametrize(
    "change",
    [
        lambda text: text[:-3],
        lambda text: "",
        lambda text: text.replace(b'"nan"', b'"nun"'),
        lambda text: text.replace(b"backward", b"sideward"),
        lambda text: text.replace(b'"loss"', b'"profit"'),
        lambda text: text.replace(b",1.5,", b",one,"),
        lambda text: text.replace(b"12,1,", b"-12,1,"),
        lambda text: text + b"1,2\n",
        lambda text: text + b"\xff\n",
    ],
    ids=["cut", "empty", "column", "phase", "kind", "number", "negative", "short", "bytes"],
)
def test_statistics_that_were_tampered_with_are_damaged(tmp_path: Path, change: Any) -> None:
    path = save(tmp_path / "it") / "rank-1" / "statistics.csv"
    path.write_bytes(change(path.read_bytes()) or b"")
    with pytest.raises(IncidentError, match=r"statistics.csv is damaged \(line \d+: .*\): copy the incident again"):
        load(tmp_path / "it")


def test_a_folder_that_cannot_be_written_is_refused_before_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_writable(tmp_path / "new" / "folder")
    assert (tmp_path / "new" / "folder").is_dir() and not list((tmp_path / "new" / "folder").iterdir())
    (tmp_path / "file").write_text("")
    for place in ("file", "file/below"):
        with pytest.raises(IncidentError, match="is a file, not a folder: choose another folder"):
            check_writable(tmp_path / place)

    def refuse(**_: Any) -> None:  # root may write everywhere
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(tempfile, "TemporaryFile", refuse)
    with pytest.raises(IncidentError, match=r"cannot write incidents into .*: Permission denied; choose another"):
        check_writable(tmp_path)


def test_saving_where_a_file_stands_says_so(tmp_path: Path) -> None:
    (tmp_path / "it").write_text("")
    with pytest.raises(IncidentError, match="cannot save the incident in"):
        save(tmp_path / "it")


# -- the page --------------------------------------------------------------------------------------


def test_the_page_tells_the_finding_in_order_and_needs_no_network(tmp_path: Path) -> None:
    text = page(load(save(tmp_path / "it"))).replace("<wbr>", "")
    told = [
        finding().sentence(),
        "What, where, when",
        "It was read before its copy was done.",
        "gradient of lm_head: 2 of 8 bad",
        "The last steps' extremes".replace("'", "&#39;"),
        "Which points were bad, and when",
        "<h2>Words</h2>",
        "rank-1/batch.safetensors",
        "Configuration",
    ]
    places = [text.index(one) for one in told]
    assert places == sorted(places)
    assert not [value for name, value in Page(text).attributes if name in {"src", "href", "action", "data"}]
    assert len(text) < 1_000_000


def test_the_page_runs_its_own_scripts_and_no_other(tmp_path: Path) -> None:
    text = page(load(save(tmp_path / "it")))
    run = [*scripts(text), unpacked(text)]
    hashes = [base64.b64encode(hashlib.sha256(one.encode()).digest()).decode() for one in run]
    policy = next(value for name, value in Page(text).attributes if name == "content" and "script-src" in (value or ""))
    assert policy is not None and re.findall("sha256-([^']+)", policy) == hashes and len(hashes) == 3
    assert "default-src 'none'" in policy and "unsafe-inline" not in policy.partition("script-src")[2]


def test_hostile_names_stay_text(tmp_path: Path) -> None:
    plain = Page(page(load(save(tmp_path / "plain"))))
    for name in HOSTILE:
        folder = tmp_path / hashlib.sha256(name.encode(errors="replace")).hexdigest()
        story = {"module": name, "parameter": name, "detail": name, "evidence": (name,), "spread": (name,)}
        read = load(save(folder, names=(name,), **story))
        assert read.finding.parameter == name
        text = page(read)
        text.encode()  # half a surrogate pair would refuse
        seen = Page(text)
        assert len(scripts(text)) + 1 == seen.tags.count("script") == 3
        assert {*seen.tags, "wbr"} == set(plain.tags)
        assert not [one for one, _ in seen.attributes if one.startswith("on")]
        assert not re.search("[\u202a-\u202e\u2066-\u2069\x00]", text + drawing(text))
        assert "$$x" not in drawing(text) and "\\\\(" not in drawing(text)  # or Bokeh would fetch MathJax
        assert len(text) < 1_000_000


def test_names_of_statistics_come_back_whole(tmp_path: Path) -> None:
    save(tmp_path / "it", names=HOSTILE)
    read = [probe.point.parameter for probe in load(tmp_path / "it").statistics[0] if probe.point.kind is Kind.GRADIENT]
    assert read[: len(HOSTILE)] == [name.replace("\ud800", "\\ud800") for name in HOSTILE]


def test_a_page_without_statistics(tmp_path: Path) -> None:
    text = page(load(save(tmp_path / "none", ranks=())))
    assert "Rank 1 left no statistics" in text and "No rank left its batch." in text and 'id="packed"' not in text
    text = page(load(save(tmp_path / "other", ranks=(0,))))
    assert "rank 1 left nothing, so this is rank 0" in text and "rank-0/batch.safetensors" in text


@pytest.mark.parametrize("value", [0.0, 1e308, 5e-324, math.nan, math.inf])
def test_a_page_draws_any_extremes(tmp_path: Path, value: float) -> None:
    seen = [ProbeResult(ProbePoint(Kind.LOSS), 1, 1, "forward", 1, 0, 0, 0, -value, value, 1)]
    found = finding(step=1, rank=0, low=-value, high=value)
    text = page(Incident(found, 1, {}, {}, {0: seen}, ()))
    assert "Which points were bad" in text


def test_the_map_shows_the_bad_points_first_and_no_more_than_sixty(tmp_path: Path) -> None:
    names = [f"layers.{number}" for number in range(80)]
    seen = [
        ProbeResult(ProbePoint(Kind.OUTPUT, name), 12, 1, "forward", order, int(order == 77), 0, 0, 0.0, 1.0, 8)
        for order, name in enumerate(names)
    ]
    text = page(Incident(finding(order=78, rank=0), 1, {}, {}, {0: seen}, ()))
    assert "60 of 80 points" in text
    drawn = drawing(text)
    assert '[0,"layers.77 ' in drawn and '[1,"layers.78 ' in drawn
    assert '"layers.3 ' not in drawn


# -- the command line ------------------------------------------------------------------------------


def test_report_makes_the_page_and_says_the_verdict(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = save(tmp_path / "it")
    main(["report", str(folder)])
    shown = capsys.readouterr().out
    assert finding().sentence() in shown and str(folder / "report" / "index.html") in shown
    assert (folder / "report" / "index.html").read_text(encoding="utf-8").startswith("<!DOCTYPE html>")
    main(["report", str(folder), "--output", str(tmp_path / "deep" / "page.html")])
    assert (tmp_path / "deep" / "page.html").exists()


def test_report_says_in_a_sentence_what_is_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in ([str(tmp_path)], [str(save(tmp_path / "it")), "--output", str(tmp_path)]):
        with pytest.raises(SystemExit) as ended:
            main(["report", *arguments])
        said = capsys.readouterr().err
        assert ended.value.code == 2
        assert said.startswith("Error: ") and said.count("\n") == 1
    with pytest.raises(IncidentError, match="it is a folder; choose another --output"):
        write_page(load(tmp_path / "it"), tmp_path)


def test_the_same_command_makes_the_same_bits(tmp_path: Path) -> None:
    folder = save(tmp_path / "it")
    made = []
    for seed in ("1", "2"):
        output = tmp_path / f"{seed}.html"
        command = [sys.executable, "-m", "streamrace", "report", str(folder), "--output", str(output)]
        subprocess.run(command, cwd=ROOT, check=True, timeout=120, env={**os.environ, "PYTHONHASHSEED": seed})
        made.append(output.read_bytes())
    assert made[0] == made[1]
