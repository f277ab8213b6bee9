"""Broken and hostile files that were met: each is refused in a sentence, before anything starts, and nothing else is
touched by it.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet
from rich.text import Text
from tornado.httpclient import AsyncHTTPClient, HTTPResponse
from tornado.httpserver import HTTPServer
from tornado.netutil import bind_sockets

from streamrace.device.hardware import ProfileError, load_profile
from streamrace.device.hardware.profile import _PROFILES
from streamrace.reports.data.schema import ReportError
from streamrace.reports.pages.serve import application, listed
from streamrace.reports.screen.console import Terminal
from streamrace.repro.sessions.recordings import scenario_of, token_of
from streamrace.scenarios.base import ScenarioError
from streamrace.scenarios.job import job
from streamrace.scenarios.scenario import load, scenario
from streamrace.trace.untrusted import Unreadable, json_of, visible
from tests.inputs.hostile import ESCAPES
from tests.inputs.obeyed import nothing_starts, obeyed
from tests.reports.campaign_folders import campaign
from tests.reports.run_folders import run_folder

DEEP = "[" * 700 + "]" * 700


def refused(folder: Path, *words: str) -> str:
    """What ``words`` say on standard error, with exit status 2."""
    with nothing_starts():
        said = obeyed(words, folder)
    assert said.status == 2, said
    return said.err


def changed(file: Path, old: str, new: str) -> None:
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new, 1))


# -- runs, campaigns, studies --------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [DEEP, "1e999", "9" * 6_000, "NaN"], ids=["deep", "infinite", "digits", "NaN"])
def test_a_value_that_json_or_we_cannot_hold(value: str, tmp_path: Path) -> None:
    folder = run_folder(tmp_path / "it")
    changed(folder / "findings.json", '"steps_done": 5', f'"steps_done": {value}')
    said = refused(tmp_path, "report", "it")
    assert "findings.json does not hold what a run writes: it " in said and len(said) < 400


@pytest.mark.parametrize(
    "text", ["[" * 65 + "]" * 65, '{"a":' * 65 + "1" + "}" * 65, "18446744073709551616", "-1e400", "[", "\xff"]
)
def test_what_comes_back_from_json_can_be_walked_and_written_again(text: str) -> None:
    with pytest.raises(Unreadable):
        json_of(text.encode("latin-1"))
    assert json_of(b"[" * 64 + b"]" * 64) and json_of(b"18446744073709551615 ") == 2**64 - 1
    json.dumps(json_of(b'["\\ud800", 1e-999]'), ensure_ascii=False).encode()


def test_a_campaign_in_which_more_diverged_than_was_tried(tmp_path: Path) -> None:
    folder = campaign(tmp_path / "it", fix="none", diverged=2, timings=9)
    changed(folder / "timings.json", '"diverged": 2', '"diverged": 1000000000')
    assert "1000000000 of 9 timings" in refused(tmp_path, "report", "it")


Column = Callable[[int], Any]
COLUMNS: dict[str, tuple[str, Column, str]] = {
    "no names": ("parameter", lambda rows: pa.nulls(rows, pa.string()), "its parameter is not known"),
    "names of bytes": ("parameter", lambda rows: pa.array([b"\xff"] * rows), "its parameter is no text"),
    "no steps": ("step", lambda rows: pa.nulls(rows, pa.int64()), "its step is not known"),
    "parts of steps": ("step", lambda rows: pa.array([0.5] * rows), "its step is no whole number"),
    "uses without end": ("uses", lambda rows: pa.array([2**62] * rows), "its uses is a number that no run writes"),
}


@pytest.mark.parametrize("case", COLUMNS)
def test_a_column_of_a_parquet_file_that_is_another(case: str, tmp_path: Path) -> None:
    name, column, sentence = COLUMNS[case]
    file = run_folder(tmp_path / "it") / "checksums.parquet"
    table = parquet.read_table(file)
    parquet.write_table(table.set_column(table.column_names.index(name), name, column(len(table))), file)
    assert sentence in refused(tmp_path, "report", "it")


def test_a_parquet_file_that_unpacks_to_more_than_memory(tmp_path: Path) -> None:
    file = run_folder(tmp_path / "it") / "checksums.parquet"
    rows = pa.DictionaryArray.from_arrays(np.zeros(40_000_000, dtype=np.int8), ["a"])
    parquet.write_table(pa.table({"parameter": rows}), file)
    assert file.stat().st_size < 1 << 20
    assert "it unpacks to 40,000,000 rows" in refused(tmp_path, "report", "it")


# -- the terminal --------------------------------------------------------------------------------------------


def test_names_do_not_steer_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    name = ESCAPES.replace("\x07", "")
    folder = run_folder(tmp_path / name, version=99)
    assert "\\u001b[2J" in refused(tmp_path, "report", folder.name)
    console = Terminal()
    console.print(f"[red]{ESCAPES}[/]")
    console.print(Text(f"{ESCAPES}\n", "red"))
    said = capsys.readouterr().out
    assert visible(said) == said and said.count("\\u001b[2J") == 2 and "[red]" in said


# -- links ---------------------------------------------------------------------------------------------------


def test_a_report_is_not_written_through_a_link(tmp_path: Path) -> None:
    folder, elsewhere = run_folder(tmp_path / "it"), tmp_path / "elsewhere"
    elsewhere.mkdir()
    (folder / "report").symlink_to(elsewhere)
    assert "is a link" in refused(tmp_path, "report", "it")
    assert not list(elsewhere.iterdir())


def test_a_link_among_a_reports_files_is_replaced_and_not_followed(tmp_path: Path) -> None:
    folder, victim = run_folder(tmp_path / "it"), tmp_path / "victim"
    victim.write_text("mine")
    (folder / "report").mkdir()
    for name in ("index.html", ".part.index.html", ".part.metrics.parquet", ".part.report.md"):
        (folder / "report" / name).symlink_to(victim)
    assert obeyed(("report", "it"), tmp_path).status == 0
    assert victim.read_text() == "mine"
    assert sorted(one.name for one in (folder / "report").iterdir() if one.is_symlink()) == []


# -- the server ----------------------------------------------------------------------------------------------


def answers(folder: Path, *paths: str, meanwhile: Callable[[], object] = lambda: None) -> list[HTTPResponse]:
    """What the pages over ``folder`` answer; ``meanwhile`` comes between the first and the others."""

    async def run() -> list[HTTPResponse]:
        sockets = bind_sockets(0, "127.0.0.1")
        server = HTTPServer(application(folder))
        server.add_sockets(sockets)
        address = f"http://127.0.0.1:{sockets[0].getsockname()[1]}"
        found = []
        for path in paths:
            found.append(await AsyncHTTPClient().fetch(f"{address}{path}", raise_error=False, request_timeout=60))
            meanwhile()
        server.stop()
        return found

    return asyncio.run(run())


def test_one_folders_fault_is_one_row_of_the_index(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    run_folder(runs / "good", clean=True)
    for name, text in {"deep": DEEP, "infinite": '{"verdict": 1e999}', "list": "[]", "odd": '{"verdict": []}'}.items():
        (runs / name).mkdir()
        (runs / name / "findings.json").write_text(text)
    (runs / "huge").mkdir()
    with (runs / "huge" / "findings.json").open("wb") as file:
        file.truncate(60 << 20)
    (runs / "campaign").mkdir()
    (runs / "campaign" / "timings.json").write_text('{"campaign": {"diverged": [], "timings": {}}}')
    rows = {row.name: row for row in listed(runs)}
    assert rows["good"].verdict == "clean"
    assert {name for name, row in rows.items() if row.verdict == "cannot be read"} == rows.keys() - {"good"}
    assert "it has more than 32 MiB" in rows["huge"].about
    index, deep, good = answers(runs, "/", "/report?run=deep", "/report?run=good")
    assert index.code == 200 and index.body.decode().count("cannot be read") >= 6
    assert deep.code == 404 and b"nested too deeply" in deep.body
    assert good.code == 200


def test_a_folder_that_went_away_while_it_is_served(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    runs.mkdir()

    def away() -> None:
        if runs.exists():
            runs.rmdir()

    before, index, report = answers(runs, "/", "/", f"/report?run={quote('it')}", meanwhile=away)
    assert before.code == 200
    for answer in (index, report):
        assert answer.code == 404 and b"name the folder that holds the runs" in answer.body
    with pytest.raises(ReportError):
        listed(runs)


# -- what is asked for ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        {"learning_rate": float("inf")},
        {"jitter": float("inf")},
        {"jitter": 1e9},
        {"slow": {"host": float("inf")}},
        {"slow": {"host": float("nan")}},
        {"slow": {"host": 1e7}},
        {"clip": float("inf")},
        {"steps": 999_999_999_999},
        {"seed": 2**63},
        {"timing_seed": -1},
        {"micro_batch": 10**9},
        {"prefetch_bucket": 2**60},
    ],
    ids=str,
)
def test_options_have_bounds(options: dict[str, Any]) -> None:
    with pytest.raises(ScenarioError):
        scenario(**options)


@pytest.mark.parametrize(
    "options", [{"network": 1e300}, {"network": 1e-300}, {"nodes": 10**9}, {"gpus": 10**9}], ids=str
)
def test_jobs_have_bounds(options: dict[str, Any]) -> None:
    with pytest.raises(ScenarioError):
        job(**options)


@pytest.mark.parametrize("part", ["steps=999999999999", "learning_rate=inf", "jitter=inf", "slow=host%3D1e400"])
def test_a_token_has_the_bounds_of_what_it_names(part: str) -> None:
    with pytest.raises(ScenarioError):
        scenario_of(token_of(f"t1,main,{part}"))


def test_a_token_that_is_longer_than_a_path(tmp_path: Path) -> None:
    said = refused(tmp_path, "replay", f"t1,main,hardware={'x' * 5_000}")
    assert "there is no hardware profile" in said


@pytest.mark.parametrize(
    "text", ["tflops = " + "9" * 6_000, "tflops = 1" + "0" * 400, f"tflops = {'[' * 3_000}", "tflops = 1e300"]
)
def test_a_profile_with_numbers_that_no_machine_has(text: str, tmp_path: Path) -> None:
    file = tmp_path / "own.toml"
    lines = (_PROFILES / "a100-100gbps.toml").read_text().splitlines()
    file.write_text("\n".join(text if line.startswith("tflops") else line for line in lines))
    with pytest.raises(ProfileError) as error:
        load_profile(str(file))
    assert len(str(error.value)) < 300


def test_a_scenario_that_is_nested_too_deeply(tmp_path: Path) -> None:
    (tmp_path / "scenario.json").write_text(DEEP)
    with pytest.raises(ScenarioError, match="is not a scenario: it is nested too deeply"):
        load(tmp_path / "scenario.json")


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"zero_optimization": []}, "zero_optimization is a list, and DeepSpeed wants an object there"),
        ({"zero_optimization": None}, "zero_optimization is null"),
        ({"bf16": []}, "bf16 is a list"),
        ({"optimizer": {"type": "AdamW", "params": []}}, "optimizer.params is a list"),
        ({"scheduler": "x"}, "scheduler is text"),
        ({"zero_optimization": {"offload_param": []}}, "zero_optimization.offload_param is a list"),
        ({"zero_optimization": {"mics_shard_size": "x"}}, "zero_optimization.mics_shard_size is a whole number"),
        ({"train_micro_batch_size_per_gpu": 10**12}, "train_micro_batch_size_per_gpu is a whole number from 1"),
        ({"gradient_accumulation_steps": [1]}, "gradient_accumulation_steps is a whole number from 1"),
    ],
    ids=str,
)
def test_a_deepspeed_json_of_another_shape_is_refused_before_a_rank_starts(
    settings: Any, sentence: str, tmp_path: Path
) -> None:
    file = tmp_path / "ds.json"
    file.write_text(json.dumps(settings))
    with pytest.raises(ScenarioError) as error:
        job(config=str(file)).check()
    assert sentence in str(error.value)


def test_a_deepspeed_json_that_is_nested_too_deeply(tmp_path: Path) -> None:
    (tmp_path / "ds.json").write_text(DEEP)
    assert "is not JSON: it is nested too deeply" in refused(tmp_path, "dry", "--config", "ds.json")
