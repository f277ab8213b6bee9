"""``repro fix``: what would put a race in order, proven in the trace, priced, and tried live before it is shown."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

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


    for _ in range(2):
        write()
        with torch.cuda.stream(side):
            read()
    torch.cuda.synchronize()
"""
REUSED = """
    import torch

    side = torch.cuda.Stream()
    for _ in range(2):
        a = torch.ones(1024, device="cuda")
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            total = a * 2
        del a
        b = torch.zeros(1024, device="cuda")
        del b
    torch.cuda.synchronize()
"""
ON_THE_HOST = """
    import torch

    a = torch.ones(1024, device="cuda")
    b = a.to("cpu", non_blocking=True)
    print(b.numpy()[0])
"""
BY_AUTOGRAD = """
    import torch

    side = torch.cuda.Stream()
    w = torch.ones(64, 64, device="cuda", requires_grad=True)
    torch.cuda.synchronize()
    w.square().sum().backward()
    with torch.cuda.stream(side):
        w.grad.mul_(2.0)
    torch.cuda.synchronize()
"""

Ran = tuple[subprocess.CompletedProcess[str], dict[str, Any]]
Fix = Callable[..., Ran]


@pytest.fixture
def fix(tmp_path: Path) -> Fix:
    """Checks a program, and looks for a cure of its first race."""

    def run(text: str, *options: str, race: str = "1") -> Ran:
        (tmp_path / "train.py").write_text(dedent(text).lstrip())
        check = _repro(tmp_path, "check", "--witnesses", "0", "--name", "it", "train.py")
        assert check.returncode == 1, check.stdout + check.stderr
        done = _repro(tmp_path, "fix", "runs/it", race, *options)
        file = tmp_path / "runs" / "it" / "fix-1" / "fix.json"
        return done, json.loads(file.read_text()) if file.exists() else {}

    return run


def _repro(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environment = {**shell(), "PYTHONPATH": str(ROOT), "COLUMNS": "160"}
    return with_simulated_gpu().start("-m", "repro", *words, folder=folder, environment=environment).completed()


def kinds(found: dict[str, Any], **wanted: Any) -> list[str]:
    rows = [row for row in found["rows"] if all(row[name] == value for name, value in wanted.items())]
    return list(dict.fromkeys(row["how"] for row in rows))


def test_the_weakest_order_is_the_best_and_its_diff_was_tried_and_changes_no_file(fix: Fix, tmp_path: Path) -> None:
    done, found = fix(TWO_FUNCTIONS, "--report")
    assert done.returncode == 0, done.stdout + done.stderr
    best = found["rows"][found["best"]]
    assert (best["how"], best["live"], best["longer_ns"]) == ("event", "clean", best["live_longer_ns"])
    diff = (tmp_path / "runs" / "it" / "fix-1" / "fix.diff").read_text()
    assert [line for line in diff.splitlines() if line[:1] == "+"] == [
        "+++ b/train.py",
        "+_write_done = torch.cuda.Event()",
        "+    _write_done.record()",
        "+    torch.cuda.current_stream().wait_event(_write_done)",
    ]
    assert (tmp_path / "train.py").read_text() == dedent(TWO_FUNCTIONS).lstrip()
    assert "Tried: clean." in done.stdout
    host = min(row["longer_ns"] for row in found["rows"] if row["how"].endswith("synchronisation") and row["holds"])
    assert best["longer_ns"] < host
    assert (tmp_path / "runs" / "it" / "fix-1" / "report" / "index.html").is_file()


def test_memory_that_is_handed_out_again_is_kept_by_record_stream(fix: Fix) -> None:
    done, found = fix(REUSED, "--tries", "0")
    assert done.returncode == 1, done.stdout + done.stderr
    best = found["rows"][0]
    assert (best["how"], best["holds"], best["this_owner"]) == ("record_stream", True, False)
    assert best["unwritten"] == "no name of the tensor is known there"  # which a live run tells
    waits = [row for row in found["rows"] if row["this_owner"]]
    assert waits, "a wait of the next owner is no cure for the one after it"
    assert found["best"] is None
    assert "none was tried live" in done.stdout


def test_the_hosts_own_access_waits_for_an_event_and_for_no_stream(fix: Fix) -> None:
    _, found = fix(ON_THE_HOST, "--tries", "0")
    assert kinds(found, holds=True)[0] == "event synchronisation"
    assert not {"event", "stream wait"} & {*kinds(found)}
    assert ".synchronize()" in found["rows"][0]["diff"]


def test_no_line_is_put_where_autograd_works(fix: Fix) -> None:
    _, found = fix(BY_AUTOGRAD, "--tries", "0")
    assert kinds(found, holds=True)[0] == "stream wait"
    assert not any(row["diff"] for row in found["rows"] if row["how"] == "event")
    assert any("is run by autograd, at no line" in row["unwritten"] for row in found["rows"] if row["how"] == "event")
    assert "wait_stream(torch.cuda.default_stream())" in found["rows"][0]["diff"]


def test_a_file_that_is_another_one_now_is_refused_in_a_sentence(fix: Fix, tmp_path: Path) -> None:
    fix(BY_AUTOGRAD, "--tries", "0")
    (tmp_path / "train.py").write_text("# a line more\n" + (tmp_path / "train.py").read_text())
    done = _repro(tmp_path, "fix", "runs/it", "1")
    assert done.returncode == 2
    assert done.stderr == "Error: train.py is not what it was in that run: run 'repro check' again\n"
    (tmp_path / "train.py").unlink()
    done = _repro(tmp_path, "fix", "runs/it", "1")
    assert done.returncode == 2
    assert "call it where 'repro check' was called" in done.stderr


@pytest.mark.wide
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("text", "how"),
    [(REUSED, "record_stream"), (ON_THE_HOST, "event synchronisation"), (BY_AUTOGRAD, "stream wait")],
)
def test_each_kind_is_borne_out_by_a_live_run(fix: Fix, text: str, how: str) -> None:
    done, found = fix(text)
    assert done.returncode == 0, done.stdout + done.stderr
    best = found["rows"][0]
    assert (best["how"], best["live"], best["longer_ns"]) == (how, "clean", best["live_longer_ns"])
    if how == "record_stream":
        assert "+        a.record_stream(torch.cuda.current_stream())\n" in best["diff"]


@pytest.mark.wide
@pytest.mark.timeout(600)
def test_the_second_race_has_a_cure_that_costs_less_than_the_host_would(tmp_path: Path) -> None:
    _cured_cheaply(tmp_path, "ds_second_race.py")


@pytest.mark.release
@pytest.mark.timeout(600)
def test_the_first_race_has_one_too(tmp_path: Path) -> None:
    _cured_cheaply(tmp_path, "ds5059.py", "--package", "deepspeed==0.13.4")


def _cured_cheaply(folder: Path, name: str, *options: str) -> None:
    (folder / "train.py").write_bytes((ROOT / "scenarios" / "catalogue" / "deepspeed" / name).read_bytes())
    (folder / ".releases").symlink_to(ROOT / ".releases")
    environment = {name: value for name, value in os.environ.items() if name != "DS_ACCELERATOR"}
    words = ["check", "--witnesses", "0", "--ranks", "2", *options, "--name", "it", "train.py"]
    ran = [_process(folder, environment, *words), _process(folder, environment, "fix", "runs/it", "1")]
    assert [one.returncode for one in ran] == [1, 0], ran[-1].stdout + ran[-1].stderr
    found = json.loads((folder / "runs" / "it" / "fix-1" / "fix.json").read_text())
    best = found["rows"][found["best"]]
    host = [row["longer_ns"] for row in found["rows"] if row["how"].endswith("synchronisation") and row["holds"]]
    assert best["longer_ns"] < min(host)
    assert best["live"] == "clean"


def _process(folder: Path, environment: dict[str, str], *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "repro", *words],
        cwd=folder,
        env=environment | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
