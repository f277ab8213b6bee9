"""``streamrace fix``: what would put a race in order, proven in the trace, priced, and tried live first."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from streamrace.detectors.places import between
from streamrace.device.packages import folder_of_releases, names
from streamrace.device.scripts import WrongUse
from streamrace.reports.data.fixes import FixFile
from streamrace.reports.data.loading import load
from streamrace.repro.sessions.fixing.session import fix as look
from streamrace.repro.sessions.race_selection import chosen
from streamrace.scenarios.catalogue.entry import Entry, entries
from tests.warm import ROOT, shell, with_simulated_gpu

TWO_FUNCTIONS = """
    import torch

    side = torch.cuda.Stream()
    a = torch.ones(512, 512, device="cuda")
    torch.cuda.synchronize()


    def write():
        a.mul_(2.0)
        torch.mm(a, a)


    def read():
        return a.sum()


    write()
    with torch.cuda.stream(side):
        read()
    torch.cuda.synchronize()
"""
THREE = """
    import torch

    side = torch.cuda.Stream()


    def reused():
        a = torch.ones(1024, device="cuda")
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            total = a * 2
        del a
        b = torch.zeros(1024, device="cuda")


    def by_autograd():
        w = torch.ones(64, 64, device="cuda", requires_grad=True)
        torch.cuda.synchronize()
        w.square().sum().backward()
        with torch.cuda.stream(side):
            w.grad.sum()


    def on_the_host():
        b = torch.ones(1024, device="cuda").to("cpu", non_blocking=True)
        print(b.numpy()[0])


    for one in (reused, by_autograd, on_the_host):
        one()
        torch.cuda.synchronize()
"""

Ran = tuple[subprocess.CompletedProcess[str], dict[str, Any]]


def _checked(folder: Path, text: str) -> Path:
    (folder / "train.py").write_text(dedent(text).lstrip())
    check = _repro(folder, "check", "--witnesses", "0", "--name", "it", "train.py")
    assert check.returncode == 1, check.stdout + check.stderr
    return folder


def _fixed(folder: Path, race: str, *options: str) -> Ran:
    done = _repro(folder, "fix", "runs/it", race, "--output", "out", *options)
    file = folder / "out" / "fix.json"
    return done, json.loads(file.read_text()) if file.exists() else {}


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run that has a race in each function of the program."""
    return _checked(tmp_path_factory.mktemp("three"), THREE)


def _repro(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environment = {**shell(), "PYTHONPATH": str(ROOT), "COLUMNS": "160"}
    return with_simulated_gpu().start("-m", "streamrace", *words, folder=folder, environment=environment).completed()


def in_the_trace(folder: Path, race: str, monkeypatch: pytest.MonkeyPatch) -> FixFile:
    """Without a live run, and without a process for it."""
    monkeypatch.chdir(folder)
    return look(chosen(Path("runs/it"), race), folder, tries=0, tell=lambda _: None)


def test_the_weakest_order_is_the_best_and_its_diff_was_tried_and_changes_no_file(tmp_path: Path) -> None:
    done, found = _fixed(_checked(tmp_path, TWO_FUNCTIONS), "1")
    assert done.returncode == 0, done.stdout + done.stderr
    best = found["rows"][found["best"]]
    assert (best["how"], best["live"], best["longer_ns"]) == ("event", "clean", best["live_longer_ns"])
    diff = (tmp_path / "out" / "fix.diff").read_text()
    assert [line for line in diff.splitlines() if line[:1] == "+"] == [
        "+++ b/train.py",
        "+_write_done = torch.cuda.Event()",
        "+    _write_done.record()",
        "+    torch.cuda.current_stream().wait_event(_write_done)",
    ]
    assert (tmp_path / "train.py").read_text() == dedent(TWO_FUNCTIONS).lstrip()
    assert "stream 'stream" not in json.dumps(found)
    assert "Tried: clean." in done.stdout
    host = min(row["longer_ns"] for row in found["rows"] if row["how"].endswith("synchronisation") and row["holds"])
    assert best["longer_ns"] < host


def test_memory_that_is_handed_out_again_is_kept_by_record_stream(three: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = in_the_trace(three, "train.py:reused", monkeypatch)
    best = found.rows[0]
    assert (best.how, best.holds, best.this_owner) == ("record_stream", True, False)
    assert best.unwritten == "no name of the tensor is known there"  # which a live run tells
    assert any(row.this_owner for row in found.rows), "a wait of the next owner is no cure for the one after it"
    assert found.best is None
    assert found.sentence().endswith("candidates remove the race in the trace, and none was tried live.")


def test_the_hosts_own_access_waits_for_an_event_and_for_no_stream(
    three: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = in_the_trace(three, "train.py:on_the_host", monkeypatch)
    assert (found.rows[0].how, found.rows[0].holds) == ("event synchronisation", True)
    assert not {"event", "stream wait"} & {row.how for row in found.rows}
    assert ".synchronize()" in found.rows[0].diff


def test_no_line_is_put_where_autograd_works(three: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = in_the_trace(three, "train.py:by_autograd", monkeypatch)
    assert (found.rows[0].how, found.rows[0].holds) == ("stream wait", True)
    assert "wait_stream(torch.cuda.default_stream())" in found.rows[0].diff
    events = [row for row in found.rows if row.how == "event"]
    assert events
    assert not any(row.diff for row in events)
    assert "is run by autograd, at no line of the program" in events[0].unwritten


def test_a_file_that_is_another_one_now_is_refused_in_a_sentence(
    three: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "it"
    shutil.copytree(three, folder)
    (folder / "train.py").write_text("# a line more\n" + (folder / "train.py").read_text())
    with pytest.raises(WrongUse, match="train.py is not what it was in that run: run 'streamrace check' again"):
        in_the_trace(folder, "1", monkeypatch)
    (folder / "train.py").unlink()
    with pytest.raises(WrongUse, match="call it where 'streamrace check' was called"):
        in_the_trace(folder, "1", monkeypatch)


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        ({"program": "'"}, "No closing quotation"),
        ({"program": "-m"}, "it is empty"),
        ({"program": 7}, "program: Input should be a valid string"),
        ({"ranks": "2"}, "ranks: Input should be a valid integer"),
    ],
)
def test_a_folder_that_does_not_say_what_ran_is_refused(
    three: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: dict[str, object], why: str
) -> None:
    _saying(three, tmp_path / "it", asked)
    with pytest.raises(WrongUse, match=f"does not say which program ran .{why}"):
        in_the_trace(tmp_path / "it", "1", monkeypatch)


def test_nothing_is_installed_for_what_a_folder_says(
    three: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _saying(three, tmp_path / "it", {"packages": {"nobody==1.0": "tried"}})
    monkeypatch.chdir(tmp_path / "it")
    monkeypatch.setenv("STREAMRACE_CACHE", str(tmp_path / "cache"))
    found = look(chosen(Path("runs/it"), "1"), tmp_path, tries=4, tell=lambda _: None)
    assert found.untried == f"nobody==1.0 is not in {folder_of_releases()}: run 'streamrace check' with it here"
    assert found.best is None


def _saying(three: Path, folder: Path, asked: dict[str, object]) -> None:
    shutil.copytree(three, folder)
    file = folder / "runs" / "it" / "findings.json"
    found = json.loads(file.read_text())
    found["scenario"] |= asked
    file.write_text(json.dumps(found))


@pytest.mark.wide
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("function", "how"),
    [("reused", "record_stream"), ("on_the_host", "event synchronisation"), ("by_autograd", "stream wait")],
)
def test_each_kind_is_borne_out_by_a_live_run(three: Path, function: str, how: str) -> None:
    done, found = _fixed(three, f"train.py:{function}")
    assert done.returncode == 0, done.stdout + done.stderr
    best = found["rows"][0]
    assert (best["how"], best["live"], best["longer_ns"]) == (how, "clean", best["live_longer_ns"])
    assert best["says"] == "the race is gone, and no other comes; 2 other races of the program stay"
    if how == "record_stream":
        assert "+        a.record_stream(torch.cuda.current_stream())\n" in best["diff"]


def _here(entry: Entry) -> bool:
    """Does it run with what the environment has?"""
    return entry.races and all(
        names.parse(one).is_(names.installed(one.partition("==")[0])) for one in entry.affected.packages
    )


EVERY = {one.id: one for one in entries()}
WITHIN = "the copy and the sum that reads it are one statement, and a wait is put between statements"


@pytest.mark.wide
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.xfail(strict=True, reason=WITHIN)) if name == "pt-grad-scaler" else name
        for name, one in EVERY.items()
        if _here(one)
    ],
)
def test_a_known_race_of_todays_releases_is_cured_in_a_live_run(tmp_path: Path, name: str) -> None:
    found = _cured(tmp_path, EVERY[name])
    if name == "ds-second-race":
        assert cost(found) < host(found)


@pytest.mark.release
@pytest.mark.timeout(600)
def test_the_race_of_hpz_is_cured_at_a_lower_price_than_by_the_host(tmp_path: Path) -> None:
    found = _cured(tmp_path, EVERY["ds5059"])
    assert cost(found) < host(found)


def _elsewhere(entry: Entry) -> bool:
    """Does it need another release, and the environment's torch?"""
    return entry.races and not _here(entry) and not entry.other_torch and entry.id != "ds5059"


@pytest.mark.release
@pytest.mark.wide
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", [name for name, one in EVERY.items() if _elsewhere(one)])
def test_a_known_race_of_another_release_is_cured_in_a_live_run(tmp_path: Path, name: str) -> None:
    _cured(tmp_path, EVERY[name])


def cost(found: dict[str, Any]) -> int:
    return int(found["rows"][found["best"]]["longer_ns"])


def host(found: dict[str, Any]) -> int:
    """Of the cheapest synchronisation of the host."""
    return min(row["longer_ns"] for row in found["rows"] if row["holds"] and row["how"].endswith("synchronisation"))


def _cured(folder: Path, entry: Entry) -> dict[str, Any]:
    words = ["--witnesses", "0", "--ranks", str(entry.ranks), "--gpus", str(entry.gpus), "--name", "it"]
    words += ["--compile", entry.compile]
    words += [word for one in entry.affected.packages for word in ("--package", one)]
    check = _process(folder, "check", *words, str(entry.path), *entry.affected.arguments)
    assert check.returncode == 1, check.stdout[-2000:] + check.stderr[-2000:]
    races = load(folder / "runs" / "it").file.races
    number = next(at for at, race in enumerate(races, 1) if between(race, entry.places))
    done = _process(folder, "fix", "runs/it", str(number))
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads((folder / "runs" / "it" / f"fix-{number}" / "fix.json").read_text())
    assert found["rows"][found["best"]]["live"] == "clean"
    return dict(found)


def _process(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != "DS_ACCELERATOR"}
    return subprocess.run(
        [sys.executable, "-m", "streamrace", *words],
        cwd=folder,
        env=environment | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
