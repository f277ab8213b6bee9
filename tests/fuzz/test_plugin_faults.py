"""A session of pytest in the middle of a marked test, of which one process is killed or stopped."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.faults import Job
from tests.warm import ROOT, Here, shell

BODY = """
import os
import signal
from pathlib import Path
import pytest
import torch

@pytest.mark.stream_race(examples=1)
def test_waits():
    torch.ones(3, device="cuda")
    Path("waits").write_text(f"{os.getppid()} {os.getpid()}")
    signal.pause()
"""


class Session(NamedTuple):
    """``house``: the process that has the GPU; ``fork``: the one of it in which the test waits."""

    job: Job
    house: int
    fork: int


@pytest.fixture
def session(tmp_path: Path) -> Iterator[Session]:
    (tmp_path / "test_somebody_waits.py").write_text(BODY)
    os.mkfifo(tmp_path / "waits")
    alone = {**shell(), "PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    arguments = (
        "-p",
        "streamrace.fuzz.testing.plugin",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:faulthandler",
        "test_somebody_waits.py",
    )
    job = Job(Here(), "-m", "pytest", *arguments, folder=tmp_path, environment=alone)
    try:
        house, fork = map(int, job.reads(tmp_path / "waits").split())
        yield Session(job, house, fork)
    finally:
        job.close()


@pytest.mark.wide
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGHUP])
def test_nothing_is_left_of_a_session_that_is_killed(session: Session, number: signal.Signals) -> None:
    session.job.send(number, "command")
    assert session.job.ended() == -number


@pytest.mark.wide
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
@pytest.mark.parametrize(
    ("whose", "words"), [("house", "the process with the simulated GPU ended in the middle"), ("fork", "process was")]
)
def test_a_process_of_a_session_that_is_lost_fails_its_test(
    session: Session, number: signal.Signals, whose: str, words: str
) -> None:
    session.job.send(number, getattr(session, whose))
    assert session.job.ended() == 1
    assert words in session.job.said
    assert "1 failed" in session.job.said
