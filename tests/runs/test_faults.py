"""Commands x signals x whom: they end soon, leave no process, and lose nothing of what was there before.

What they have in common, how processes are forked and end, ``tests/cluster/test_ends_with_parent.py`` shows: here two
commands stand for all but in the wide tests.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.faults import Job
from tests.studies import small
from tests.warm import Here

TERMINAL, SERVICE, GONE = signal.SIGINT, signal.SIGTERM, signal.SIGHUP
KILLED, STOPPED = signal.SIGKILL, signal.SIGSTOP


class Case(NamedTuple):
    """``arguments`` of the command; ``run``: what it is to replace, marked by a file ``mark``.

    It is in the middle of its work when it has said ``words``, and has started so many ``processes``.
    """

    arguments: tuple[str, ...]
    run: str
    mark: str
    words: str
    processes: int
    keeps: str = ""  # what it has found by then, written into this file though it is asked to end


_TINY = ("--size", "tiny", "--ranks", "2", "--nodes", "1", "--sequence", "32", "--accumulation", "1")
_JOB = ("--nodes", "2", "--gpus", "4", "--hpz", "4", "--sequence", "128")
_LARGE = ("--model", "llama-2-70b", "--nodes", "128", "--gpus", "8", "--hpz", "8", "--checkpointing")
COMMANDS = {
    "run": Case(("run", *_TINY, "--steps", "30"), "it", "scenario.json", "step   1/30", 2, "findings.json"),
    "compare": Case(("compare", *_TINY, "--steps", "30"), "it-none", "scenario.json", "reference:", 2),
    "dry": Case(("dry", *_JOB, "--steps", "500", "--exact"), "it", "job.json", "training, rank 0", 1),
    "dry-extend": Case(("dry", *_LARGE, "--extend"), "it", "job.json", "recording 4 layers", 1),
    "sweep": Case(("sweep", *_JOB, "--workers", "2"), "it", "job.json", "9 networks", 4),
    "fuzz": Case(("fuzz", "hpz-short", "--examples", "100000"), "", "", "Race 1", 2, "timings.json"),
    "replay": Case(("replay", "t1,hpz-short,x2:stream:compute"), "", "", "recording one live run", 2),
    "replay-live": Case(("replay", "t1,hpz-short,x2:stream:compute", "--live"), "", "", "running the timing live", 2),
}
ALL = [
    *product(COMMANDS, ("command", "job"), (TERMINAL, SERVICE, GONE)),
    *product(COMMANDS, ("command",), (KILLED,)),
    *product(COMMANDS, ("a process",), (SERVICE, GONE, KILLED, STOPPED)),
]
FIRST = [("run", "command", SERVICE), ("sweep", "job", TERMINAL)]


@pytest.fixture
def begun(tmp_path: Path) -> Iterator[Callable[[str], Job]]:
    """``begun("run")``: the command in the middle of its work, with ``--overwrite`` of a run that is there."""
    jobs = []

    def begin(name: str) -> Job:
        case = COMMANDS[name]
        words = ["-m", "streamrace", *case.arguments, "--runs", "runs"]
        if case.run:
            old = tmp_path / "runs" / case.run
            old.mkdir(parents=True)
            (old / case.mark).write_text("of the old run")
            (old / "findings.json").write_text("years of work")
            words += ["--name", "it", "--overwrite"]
        if name in ("dry", "sweep"):
            words += ["--model", small.model(tmp_path)]
        (tmp_path / "tmp").mkdir()
        job = Job(Here(), *words, folder=tmp_path, environment={**os.environ, "TMPDIR": str(tmp_path / "tmp")})
        jobs.append(job)
        job.until(case.words)
        job.until_there_are(case.processes)
        return job

    yield begin
    for job in jobs:
        job.close()


@pytest.mark.parametrize(
    ("command", "whom", "number"),
    [*FIRST, *(pytest.param(*one, marks=pytest.mark.wide) for one in ALL if one not in FIRST)],
    ids=lambda one: one.name if isinstance(one, signal.Signals) else one,
)
def test_a_command_ends_soon_leaves_no_process_and_loses_nothing(
    command: str, whom: str, number: signal.Signals, begun: Callable[[str], Job], tmp_path: Path
) -> None:
    case, job = COMMANDS[command], begun(command)
    job.send(number, whom)
    status = job.ended()
    assert "Traceback" not in job.said
    assert os.listdir(tmp_path / "tmp") == []
    if whom == "a process":
        assert status in (2, 3), job.said  # a worker of a study, or a rank
        assert ("stopped" if number is STOPPED else number.name) in job.said or "died" in job.said
    else:
        assert status == (-number if number is KILLED else 130), job.said
    if case.run:
        old = tmp_path / "runs" / case.run
        assert (old / case.mark).read_text() == "of the old run"
        assert (old / "findings.json").read_text() == "years of work"
    if case.keeps and number is not KILLED:
        new = tmp_path / "runs" / (f"{case.run}.new" if case.run else "fuzz-hpz-short")
        found = json.loads((new / case.keeps).read_text())
        if command == "run":
            assert found["steps_done"] >= 1
            assert f"runs/it is as it was; what this command left is {new.relative_to(tmp_path)}." in job.said
