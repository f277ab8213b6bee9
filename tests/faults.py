"""Commands that are killed, stopped or asked to end in the middle: what has to be gone soon after.

Nothing is slept for: a process that ends is waited for by its handle (pidfd_open(2)).
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterable, Mapping
from multiprocessing.connection import wait
from pathlib import Path

import psutil

from tests.warm import Source, Started

SOON_S = 10.0
"""In which whatever is to end has to be gone, on a machine that does nothing else."""


def gone(pids: Iterable[int]) -> bool:
    """Are all of them, soon? Whoever's children they are by then; what is left is killed."""
    shared = max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))
    until = time.monotonic() + SOON_S * shared
    left = [pid for pid in pids if not _gone(pid, until)]
    for pid in left:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return not left


def _gone(pid: int, until: float) -> bool:
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(wait([handle], max(0.0, until - time.monotonic())))
    finally:
        os.close(handle)


class Job:
    """A command with all that it starts, as a shell's job: in a session of its own."""

    def __init__(
        self, source: Source, *arguments: str, folder: Path, environment: Mapping[str, str] = os.environ
    ) -> None:
        unbuffered = {**environment, "PYTHONUNBUFFERED": "1", "COLUMNS": "200"}
        self.started: Started = source.start(*arguments, folder=folder, environment=unbuffered, session=True)
        self.said = ""
        self._seen: set[int] = {self.started.pid}

    def until(self, words: str) -> None:
        """Read what it prints up to a line with these words."""
        for line in self.started.stdout:
            self.said += line
            if words in line:
                return
        raise AssertionError(f"it never said {words!r}, but: {self.said}\n{self.started.communicate()[1]}")

    def reads(self, fifo: Path) -> str:
        """What one of its processes writes there, as soon as it is written. Fails where the command ends before."""
        ends = (os.open(fifo, os.O_RDONLY | os.O_NONBLOCK), os.pidfd_open(self.started.pid))
        try:
            written = b""
            while ends[0] in wait(ends):
                part = os.read(ends[0], 1 << 16)
                if not part and written:
                    return written.decode()
                written += part
        finally:
            for one in ends:
                os.close(one)
        raise AssertionError(f"it ended and wrote nothing to {fifo.name}: {self.started.communicate()}")

    def until_there_are(self, count: int) -> list[int]:
        """So many processes that it started, and those that they started."""
        while len(found := psutil.Process(self.started.pid).children(recursive=True)) < count:
            os.sched_yield()
        return [one.pid for one in found]

    def send(self, number: signal.Signals, whom: str | int) -> None:
        """To the ``command`` alone, to the whole ``job`` (as a terminal does it), to one by its id, or to the last."""
        self._seen |= {one for one in psutil.pids() if _session(one) == self.started.pid}
        if whom == "command":
            os.kill(self.started.pid, number)
        elif whom == "job":
            os.killpg(self.started.pid, number)
        elif isinstance(whom, int):
            os.kill(whom, number)
        else:
            os.kill(max(self._seen - {self.started.pid}), number)

    def ended(self) -> int:
        """Its exit status. It ends soon, with all that it started."""
        command_in_time = gone([self.started.pid])
        self.said += "".join(self.started.communicate())
        assert command_in_time, f"it went on: {self.said}"
        late = {one for one in psutil.pids() if _session(one) == self.started.pid}
        assert gone(self._seen | late), f"it left processes: {self.said}"
        assert self.started.returncode is not None
        return self.started.returncode

    def close(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.started.pid, signal.SIGKILL)
        self.started.communicate()


_LIMITED = """
import os
import resource
import sys

limit = int(sys.argv.pop(1))
os.dup2(1, 2)  # a pipe, which has no limit
resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
from streamrace.repro.__main__ import main

main()
"""


def limited(
    source: Source, to: int, *arguments: str, folder: Path, environment: Mapping[str, str] = os.environ
) -> tuple[int, list[str]]:
    """The command, where no file may have more than so many bytes: its exit status, and what it said.

    As on a disk that is full: the write that reaches the limit fails, in whichever process that is. Python compiles no
    file then: it takes no notice of a write that was cut short, and what it left would break every later command.
    """
    script = folder / "limited.py"
    script.write_text(_LIMITED)
    environment = {**environment, "PYTHONDONTWRITEBYTECODE": "1"}
    started = source.start(str(script), str(to), *arguments, folder=folder, environment=environment, session=True)
    done = started.completed()
    return done.returncode, done.stdout.splitlines()


def _session(pid: int) -> int:
    try:
        return os.getsid(pid)
    except OSError:
        return 0
