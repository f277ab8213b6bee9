"""A program under ``streamrace check`` that is killed, stopped or asked to end is judged by what it did until then."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from tests.faults import Job, limited
from tests.warm import shell, with_simulated_gpu

WAITS = """
    import os, signal, sys
    import torch

    ones = torch.ones(3, device="cuda") + 1
    torch.cuda.synchronize()
    if sys.argv[1:] == ["stubborn"]:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    print(f"rank {os.environ.get('RANK', 0)} waits", flush=True)
    signal.pause()
"""
TERMINAL, SERVICE, GONE = signal.SIGINT, signal.SIGTERM, signal.SIGHUP
KILLED, STOPPED = signal.SIGKILL, signal.SIGSTOP
ALL = [
    *product((1, 2), ("command", "job"), (TERMINAL, SERVICE, GONE)),
    *product((1, 2), ("command",), (KILLED,)),
    *product((1, 2), ("a process",), (SERVICE, GONE, KILLED, STOPPED)),
]
FIRST = [(2, "command", SERVICE), (1, "a process", STOPPED), (2, "command", KILLED)]


@pytest.fixture
def jobs() -> Iterator[list[Job]]:
    made: list[Job] = []
    yield made
    for job in made:
        job.close()


def waiting(check: Any, ranks: int, jobs: list[Job], *arguments: str) -> Job:
    """The program has done something on its GPUs, and waits. It is to replace a run that is there."""
    old = check.folder / "runs" / "it"
    old.mkdir(parents=True)
    (old / "check.json").write_text("of the old run")
    words = ["-m", "streamrace", "check", "--name", "it", "--overwrite"]
    words += ["--ranks", str(ranks)] if ranks > 1 else []
    job = Job(with_simulated_gpu(), *words, check.script(WAITS), *arguments, folder=check.folder, environment=shell())
    jobs.append(job)
    for _ in range(ranks):
        job.until("waits")
    return job


@pytest.mark.parametrize(
    ("ranks", "whom", "number"),
    [*FIRST, *(pytest.param(*one, marks=pytest.mark.wide) for one in ALL if one not in FIRST)],
    ids=lambda one: one.name if isinstance(one, signal.Signals) else one,
)
def test_what_a_program_did_until_it_was_ended_is_judged(
    check: Any, ranks: int, whom: str, number: signal.Signals, jobs: list[Job]
) -> None:
    job = waiting(check, ranks, jobs)
    job.send(number, whom)
    status = job.ended()
    runs: Path = check.folder / "runs"
    if number is KILLED and whom == "command":
        assert status == -KILLED
        assert (runs / "it" / "check.json").read_text() == "of the old run"
        return
    judged = runs / ("it" if whom == "a process" else "it.new")
    found = json.loads((judged / "findings.json").read_text())
    assert found["verdict"] == "unknown"
    if number is TERMINAL and ranks == 1:  # other signals end it where it stands: its last records were not written yet
        assert found["checked"]["seen"] == "2 launches on 1 stream of 1 rank"
    if whom == "a process":
        how = "was stopped (SIGSTOP), so it was ended" if number is STOPPED else f"was killed by {number.name}"
        assert (status, how in found["failure"]) == (3, True), found["failure"]
    else:
        assert (status, found["failure"]) == (130, "it was interrupted")
        assert (runs / "it" / "check.json").read_text() == "of the old run"
        assert "runs/it is as it was; what this command left is runs/it.new." in job.said


@pytest.mark.wide
def test_a_program_that_does_not_end_when_it_is_asked_to_is_killed(check: Any, jobs: list[Job]) -> None:
    job = waiting(check, 1, jobs, "stubborn")
    job.send(SERVICE, "command")
    assert job.ended() == 130


SUMS = """
    import os
    import torch
    import torch.distributed as dist

    torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", 0)))
    ones = torch.ones(1000, device="cuda")
    if "RANK" in os.environ:
        dist.init_process_group("nccl")
    for _ in range(100):
        dist.all_reduce(ones) if "RANK" in os.environ else ones.add_(1)
    torch.cuda.synchronize()
"""


@pytest.mark.parametrize(
    "limit", [pytest.param(50, marks=pytest.mark.wide), pytest.param(200, marks=pytest.mark.wide), 2_000]
)
@pytest.mark.parametrize("ranks", [1, pytest.param(2, marks=pytest.mark.wide)])
def test_a_full_disk_is_one_sentence_and_no_fault_of_the_program(check: Any, ranks: int, limit: int) -> None:
    words = ["check", "--name", "it", "--witnesses", "0", *(["--ranks", "2"] if ranks > 1 else []), check.script(SUMS)]
    status, said = limited(with_simulated_gpu(), limit, *words, folder=check.folder, environment=shell())
    assert (status, said[-1].startswith("Error: "), "File too large" in said[-1]) == (2, True, True), said
    assert not [line for line in said if "Traceback" in line]
    assert not (check.folder / "runs" / "it").exists()


@pytest.mark.wide
def test_a_launchers_rank_that_is_stopped_is_not_waited_for(check: Any) -> None:
    script = check.script(
        """
        import os, signal
        import torch

        torch.ones(3, device="cuda")
        if os.environ["RANK"] == "1":
            os.kill(os.getppid(), signal.SIGSTOP)  # who is to tell how it ended
        """
    )
    first, second = check.ranks(2, script)
    assert (first.status, second.status) == (3, -signal.SIGKILL)
    assert first.findings["failure"] == "rank 1 was stopped (SIGSTOP); the others were ended"
