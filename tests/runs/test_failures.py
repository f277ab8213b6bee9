"""What goes wrong is said in one sentence, soon, and nothing is left behind."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest

import streamrace.scenarios.program as program_module
import streamrace.scenarios.scenario as scenario_module
from streamrace.detectors.base import Detector
from streamrace.reports.data.findings import Findings
from streamrace.repro.__main__ import main
from streamrace.repro.sessions import session
from streamrace.repro.sessions.session import Interrupted
from streamrace.scenarios.base import ScenarioError
from streamrace.scenarios.scenario import load, scenario
from streamrace.trace.records import TraceRecord
from tests.cluster.patience import in_vain
from tests.warm import Here, Started

Run = Callable[..., Findings]
Refused = Callable[..., str]


@pytest.fixture
def refused(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """The one sentence with which a command is refused, before any rank starts."""

    def call(*arguments: str) -> str:
        with pytest.raises(SystemExit) as end:
            main(list(arguments))
        assert end.value.code == 2
        errors = [line for line in capsys.readouterr().err.splitlines() if line.startswith("Error")]
        assert len(errors) == 1
        return errors[0]

    return call


@pytest.fixture
def training(tmp_path: Path) -> Iterator[Started]:
    """A long run, in the middle of training its reference; its ranks are its children."""
    process = Here().start(
        "-m", "streamrace", "run", "--size", "tiny", "--steps", "500", "--name", "long", "--runs", str(tmp_path),
        environment={**os.environ, "PYTHONUNBUFFERED": "1"}, session=True,
    )  # fmt: skip
    # the reference's 500 steps would take long: it is in training as soon as its ranks say so
    for line in process.stdout:
        if "reference:" in line:
            break
    while len(psutil.Process(process.pid).children()) < 4:
        os.sched_yield()
    yield process
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
    process.communicate()


def ended(process: Started, children: list[psutil.Process]) -> str:
    """What the command says when it ends, which it does at once, and not after its reference, leaving no process.

    How many seconds that takes is measured by ``make bench`` (row *ending*).
    """
    output, errors = process.communicate()
    assert "simulated GPU" not in output  # what comes after the reference
    assert not [child for child in children if child.is_running() and child.status() != psutil.STATUS_ZOMBIE]
    assert "Traceback" not in errors
    return errors


def test_a_rank_that_is_killed(training: Started, tmp_path: Path) -> None:
    children = psutil.Process(training.pid).children()
    children[2].kill()
    errors = ended(training, children)
    assert training.returncode == 3
    assert "rank 2 was killed by SIGKILL" in errors
    assert load(tmp_path / "long" / "scenario.json").steps == 500  # it is known as a run, and may be overwritten


def test_ctrl_c(training: Started) -> None:
    children = psutil.Process(training.pid).children()
    training.send_signal(signal.SIGINT)
    errors = ended(training, children)
    assert training.returncode == 130
    assert "nterrupted" in errors


def test_a_rank_that_raises_in_the_middle_of_a_step(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was known by then is written all the same."""
    original = program_module.batches

    def broken(*arguments: Any, rank: int, **options: Any) -> Iterator[Any]:
        for count, batch in enumerate(original(*arguments, rank=rank, **options)):
            if rank == 1 and count == 3:
                raise OSError("the disk with the data is gone")
            yield batch

    short: dict[str, Any] = {"steps": 3, "ranks": 2, "nodes": 1}
    run(folder=tmp_path / "whole", **short)  # the reference is there now, and whole
    monkeypatch.setattr(program_module, "batches", broken)
    with (
        in_vain() as waited,
        pytest.raises(Interrupted, match="rank 1 raised OSError: the disk with the data is gone"),
    ):
        run(folder=tmp_path / "broken", **short)
    assert sum(waited) <= 0.5  # the moment in which a death may still be seen
    findings = json.loads((tmp_path / "broken" / "findings.json").read_text())
    assert "rank 1 raised OSError" in findings["failure"]
    assert findings["steps_done"] == 1
    assert (tmp_path / "broken" / "metrics.csv").read_text().count("\n") > 1


def test_an_interruption_while_records_are_judged_loses_none_of_them(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As Ctrl-C in the middle: some detectors had a step's records by then, and others have not."""

    class Counting(Detector):
        def __init__(self, *, interrupts: bool = False) -> None:
            self.fed: list[tuple[int, int]] = []
            self.interrupts = interrupts

        def feed(self, rank: int, records: Sequence[TraceRecord]) -> None:
            self.fed.append((rank, len(records)))
            if self.interrupts and len(self.fed) == 5:
                os.kill(os.getpid(), signal.SIGINT)

        def findings(self) -> list[Any]:
            return []

    first, last, using = Counting(interrupts=True), Counting(), session.detectors
    monkeypatch.setattr(session, "detectors", lambda: [first, *using(), last])
    with pytest.raises(Interrupted, match="interrupted"):
        run(folder=tmp_path / "cut", ranks=2, nodes=1, fix="none", sequence=32, accumulation=1)
    assert len(first.fed) >= 5 and last.fed == first.fed
    assert json.loads((tmp_path / "cut" / "findings.json").read_text())["failure"] == "interrupted"


def test_a_group_that_does_not_divide_the_ranks(refused: Refused) -> None:
    message = refused("run", "--hpz", "3")
    assert "an hpZ group of 3 does not divide 4 ranks: choose one of 1, 2, 4" in message


def test_an_unknown_fix(refused: Refused) -> None:
    message = refused("run", "--fix", "prayer")
    assert "'prayer'" in message
    assert "stream-sync" in message


def test_a_missing_data_file(refused: Refused, tmp_path: Path) -> None:
    message = refused("run", "--data", str(tmp_path / "nowhere"))
    assert "nowhere" in message


def test_an_occupied_run_folder(refused: Refused, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years of work")
    message = refused("run", "--name", "mine", "--runs", str(tmp_path))
    assert "choose another --name" in message
    message = refused("run", "--name", "mine", "--runs", str(tmp_path), "--overwrite")
    assert "does not look like a run" in message
    assert (tmp_path / "mine" / "thesis.txt").exists()


def test_a_deepspeed_that_the_scenario_is_not_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scenario_module, "installed", lambda: "0.7.0")
    with pytest.raises(ScenarioError, match=r"this is DeepSpeed 0\.7\.0, and the scenario is for 0\.19\.8"):
        scenario().check()
    with pytest.raises(ScenarioError, match=r"--deepspeed takes a release, as 0\.19\.8, not '\.\./0\.13'"):
        scenario(deepspeed="../0.13")


def test_a_fix_is_not_for_a_release_that_runs_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scenario_module, "installed", lambda: "0.13.4")
    with pytest.raises(ScenarioError, match=r"DeepSpeed 0\.13\.4 runs as it was released: --fix is for 0\.19\.8"):
        scenario(deepspeed="0.13.4", fix="none").check()


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"nodes": 3}, "4 ranks cannot be spread evenly over 3 nodes"),
        ({"steps": 0}, "steps: Input should be greater than or equal to 1"),
        ({"stands_for": "gpt-5"}, "unknown full-size model 'gpt-5'"),
        ({"slow": {"compute": 3.0}}, "slow pattern 'compute' must begin with"),
        ({"slow": {"host": 0.0}}, "slow factor of 'host' must be above 0"),
        ({"colour": "red"}, "colour: Extra inputs are not permitted"),
    ],
)
def test_options_that_do_not_fit(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ScenarioError) as error:
        scenario(**options)
    assert sentence in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"hardware": "abacus"}, "there is no hardware profile 'abacus'"),
        ({"frozen": ("nothing.*",)}, "nothing.*"),
    ],
)
def test_what_is_not_there(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ScenarioError, match=sentence.replace("*", r"\*")):
        scenario(**options).check()
