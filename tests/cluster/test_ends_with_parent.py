"""Whatever forks, and whoever ends: no process is left, and nobody waits for one that is stopped."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, cast

import pytest

from streamrace.device.ranks.cluster import Rank, RankFailed, run_ranks
from streamrace.fuzz.campaign import Share
from streamrace.fuzz.engines import EngineError, local
from streamrace.fuzz.subject import Subject
from streamrace.process import lifetime, sigstop
from streamrace.process.child import Child, Send, ending, print_to
from streamrace.process.interrupts import concluding, held
from streamrace.scenarios.base import ScenarioError
from streamrace.studies.process_pool import side_by_side
from tests.faults import gone


class Fork(NamedTuple):
    """``work`` in two processes; what is raised when one of them is stopped."""

    run: Callable[[Path, Callable[[int], None]], object]
    failure: type[Exception]


def _ranks(folder: Path, work: Callable[[int], None]) -> None:
    def rank(me: Rank) -> None:
        work(me.rank)

    run_ranks(2, rank, folder=folder)


def _campaign(_: Path, work: Callable[[int], None]) -> None:
    def explore(subject: Subject, share: Share, tell: Callable[[Any], None]) -> None:
        work(share.seed)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(local, "explore", explore)
        list(local.local(cast(Subject, None))([Share(0, 1, None), Share(1, 1, None)]))


def _study(_: Path, work: Callable[[int], None]) -> None:
    global _work
    _work = work
    list(side_by_side(_worked, [0, 1], workers=2))


def _worked(number: int) -> None:
    _work(number)


_work: Callable[[int], None] = print

FORKS = {
    "ranks": Fork(_ranks, RankFailed),
    "campaign": Fork(_campaign, EngineError),
    "study": Fork(_study, ScenarioError),
}
each_fork = pytest.mark.parametrize("fork", FORKS.values(), ids=FORKS)


class Said:
    """A pipe on which processes say their ids, a line each."""

    def __init__(self) -> None:
        self.reader, self._writer = os.pipe()

    def __call__(self) -> None:
        os.write(self._writer, f"{os.getpid()}\n".encode())

    def by(self, count: int) -> list[int]:
        """Those of so many processes, as soon as they have said them."""
        said = b""
        while said.count(b"\n") < count:
            said += os.read(self.reader, 4096)
        return [int(line) for line in said.split()]


@pytest.fixture
def said() -> Said:
    return Said()


def own_process(work: Callable[[], object]) -> int:
    """As a command of its own: nothing of the tests' process ends it, or is told of its end."""
    pid = os.fork()
    if pid:
        return pid
    with contextlib.suppress(BaseException):
        os.setsid()
        work()
    os._exit(0)


@each_fork
def test_what_was_forked_ends_with_a_parent_that_is_killed(fork: Fork, said: Said, tmp_path: Path) -> None:
    def work(_: int) -> None:
        said()
        signal.pause()

    parent = own_process(lambda: fork.run(tmp_path, work))
    pids = said.by(2)
    os.kill(parent, signal.SIGKILL)
    os.waitpid(parent, 0)
    assert gone(pids)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@each_fork
def test_who_is_asked_to_end_waits_for_no_work_that_it_has_begun(
    fork: Fork, number: signal.Signals, said: Said, tmp_path: Path
) -> None:
    def work(_: int) -> None:
        said()
        signal.pause()

    reader, writer = os.pipe()

    def command() -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            with concluding():
                fork.run(tmp_path, work)
        except KeyboardInterrupt:
            os.write(writer, b"concluded")
            os._exit(130)

    parent = own_process(command)
    pids = said.by(2)
    os.killpg(parent, number)  # as a terminal does it
    assert gone([parent, *pids])
    assert os.waitstatus_to_exitcode(os.waitpid(parent, 0)[1]) == 130
    assert os.read(reader, 100) == b"concluded"


@each_fork
def test_one_that_is_stopped_is_not_waited_for(
    fork: Fork, said: Said, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sigstop, "LOOK_S", 0.05)

    def work(number: int) -> None:
        said()
        if number:
            os.kill(os.getpid(), signal.SIGSTOP)
        signal.pause()

    with pytest.raises(fork.failure, match="stopped"):
        fork.run(tmp_path, work)
    assert gone(said.by(2))


def test_a_rank_that_goes_on_was_not_stopped(said: Said, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-Z and fg: what is stopped at one look and not at the next."""
    states = iter("STSTSSTS")
    looked = []

    def state(process: int) -> str:
        looked.append(process)
        return next(states, "S")

    monkeypatch.setattr(sigstop, "LOOK_S", 0.0)
    monkeypatch.setattr(sigstop, "_state", state)
    looks = sigstop.Looks()
    assert [looks.stopped([1]) for _ in range(8)] == [[]] * 8
    assert len(looked) == 8


def test_a_program_that_was_started_ends_with_a_parent_that_is_killed(said: Said) -> None:
    program = "import os, signal; print(os.getpid(), flush=True); signal.pause()"

    def work() -> None:
        subprocess.run(lifetime.command([sys.executable, "-c", program]), stdout=said._writer)

    parent = own_process(work)
    pids = said.by(1)
    os.kill(parent, signal.SIGKILL)
    os.waitpid(parent, 0)
    assert gone(pids)


def test_a_program_whose_parent_is_gone_does_not_begin() -> None:
    done = subprocess.run(
        [sys.executable, "-I", "-S", lifetime.__file__, "1", sys.executable, "-c", "print('begun')"],
        capture_output=True,
    )
    assert (done.returncode, done.stdout) == (1, b"")


def test_a_fork_does_not_listen_to_itself(said: Said) -> None:
    """Or it would never see that nobody else does any more."""
    reader, writer = os.pipe()

    def work(send: Send) -> int:
        os.read(reader, 1)
        try:
            send(Fork(cast(Any, "heard by"), cast(Any, "nobody")))
        except OSError:
            return 7
        return 0

    child = Child(work)
    child.pipe.close()
    os.write(writer, b"!")
    assert child.wait() == 7
    child.close()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_what_is_being_written_is_written_to_its_end(number: signal.Signals) -> None:
    written = []

    def conclude() -> None:
        with concluding():
            with held():
                os.kill(os.getpid(), number)
                os.kill(os.getpid(), number)  # a terminal that closes says it twice
                written.append("findings")
            written.append("never")

    with pytest.raises(KeyboardInterrupt):
        conclude()
    assert written == ["findings"]
    assert signal.getsignal(number) is signal.SIG_DFL


def test_a_rank_that_is_asked_to_end_is_one_that_was_killed(tmp_path: Path) -> None:
    """It has nothing to conclude: its parent has."""

    def target(me: Rank) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        signal.pause()

    with concluding(), pytest.raises(RankFailed, match="rank 0 was killed by SIGTERM"):
        run_ranks(1, target, folder=tmp_path)


def test_a_stop_is_said_as_one() -> None:
    assert ending(-signal.SIGSTOP) == "was stopped (SIGSTOP), so it was ended"


def test_a_fork_that_cannot_print_ends_all_the_same(tmp_path: Path) -> None:
    """It would go on with what the process does that forked it."""
    reader, writer = os.pipe()

    def work(send: Send) -> int:
        print_to("/dev/full")
        raise ValueError("which cannot be told")

    def command() -> None:
        os.write(writer, f"ended with {Child(work).wait()}".encode())

    os.waitpid(own_process(command), 0)
    assert os.read(reader, 100) == b"ended with 1"


@pytest.mark.parametrize(
    ("error", "full"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), True),
        (RuntimeError("the trace cannot be written: [Errno 28] No space left on device"), True),  # told by C++
        (OSError(errno.ENOENT, "No such file or directory"), False),
        (ValueError("28"), False),
    ],
)
def test_a_rank_that_meets_a_full_disk_says_so_though_its_log_is_on_it(
    error: Exception, full: bool, tmp_path: Path
) -> None:
    def target(me: Rank) -> None:
        print_to("/dev/full")
        raise error

    with pytest.raises(RankFailed, match=type(error).__name__) as failed:
        run_ranks(1, target, folder=tmp_path)
    assert failed.value.full == full


def test_a_program_that_is_stopped_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sigstop, "LOOK_S", 0.05)
    program = "import os, signal; print('begun', flush=True); os.kill(os.getpid(), signal.SIGSTOP)"
    with subprocess.Popen([sys.executable, "-I", "-S", "-c", program], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        sigstop.readable(process.stdout.fileno(), process.pid)
        assert process.stdout.readline() == b"begun\n"
        sigstop.readable(process.stdout.fileno(), process.pid)
        assert process.stdout.readline() == b""
    assert process.returncode == -signal.SIGKILL
