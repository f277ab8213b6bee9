"""Runs a program on the simulated GPU in a timing of its own, and reads the result."""

from __future__ import annotations

import contextlib
import os
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import NamedTuple, cast

from streamrace.device.timing import Timing
from streamrace.fuzz.live.run_record import RecordedRun, difference, load, numbers
from streamrace.process.service import Service
from streamrace.trace import wording
from streamrace.trace.files import file_of
from streamrace.trace.records import TraceError

# A launcher's variables for the calling rank; the runs here fork their ranks themselves.
_OF_LAUNCHERS = (
    "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE", "ROLE_RANK",
    "ROLE_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT",
)  # fmt: skip


class Poisoned(NamedTuple):
    """The arguments of :func:`streamrace.device.uninitialised.begin`."""

    poisoned: Sequence[tuple[int, int]] | None
    copies: bool


@dataclass(frozen=True)
class LiveOutcome:
    """A finished run. ``status``: its exit status, None if it was ended because it took too long."""

    run: RecordedRun
    status: int | None

    def differs(self, reference: LiveOutcome) -> str:
        """Return what differs from ``reference``, as the subject of a sentence; empty if nothing does."""
        if self.status != reference.status and 0 in (self.status, reference.status):
            return "how the program ends"
        return difference(reference.run, self.run)

    def changed(self, reference: LiveOutcome) -> str:
        """Return how the first number that differs from ``reference`` changes; empty if no number does."""
        pair = numbers(reference.run, self.run)
        return wording.becomes(*pair) if pair and not self.ends(reference) else ""

    def ends(self, reference: LiveOutcome) -> str:
        """Return what differs at its end from ``reference``, apart from the traces; empty if nothing does."""
        return (
            "how the program ends" if self.status != reference.status and 0 in (self.status, reference.status) else ""
        )


class UnwrittenTrace(RuntimeError):
    """A run's trace could not be written, as on a full disk: the run ended differently from the program."""


class Runner:
    """A process that runs programs, one after the other (``device.fork_server``). To be used in a ``with``.

    ``imported``: modules that the process imports once, for all runs. ``variables``: changes of its environment (None:
    removed). ``quiet``: its own messages are discarded.
    """

    def __init__(
        self,
        imported: Sequence[str] = (),
        variables: Mapping[str, str | None] = MappingProxyType({}),
        *,
        quiet: bool = False,
    ) -> None:
        changed = {**_environment(), **variables}
        environment = {name: value for name, value in changed.items() if value is not None}
        printed = subprocess.DEVNULL if quiet else 2
        self._service = Service(
            "streamrace.device.fork_server", *imported, stdout=printed, stderr=printed, env=environment
        )
        self.pid = self._service.pid

    def run(
        self,
        arguments: Sequence[str],
        *,
        at_once: bool = False,
        patience_s: float = 600.0,
        folder: str = "",
        printed: str = "",
        opened: str = "",
        unwritten: Poisoned | None = None,
    ) -> int | None:
        """Run a command without its ``streamrace device``; return its exit status, None if it was ended as too slow.

        ``at_once``: each launch is waited for, as with CUDA_LAUNCH_BLOCKING=1. ``folder``: the working directory
        (default: this one). ``printed``: the file to which output is appended. ``opened``: the file that lists those
        that the program opens. ``unwritten``: the unwritten memory that holds NaN, all other such memory then holding
        numbers (None: memory is left as it is). Raises RuntimeError without a simulated GPU, with the reason on
        standard error. Raises :class:`UnwrittenTrace`.
        """
        job = {"arguments": [*arguments], "at_once": at_once, "patience_s": patience_s}
        job |= {"folder": folder, "printed": printed, "opened": opened}
        job |= {"unwritten": unwritten and unwritten._asdict()}
        self._service.channel.send(job)
        for answer in self._service.channel:
            if isinstance(answer, str):
                raise UnwrittenTrace(answer)
            return cast("int | None", answer)
        raise RuntimeError("the program cannot be run again: the simulated GPU does not start")

    def close(self) -> None:
        """End the process, and the program that runs in it."""
        self._service.close()

    def __enter__(self) -> Runner:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


@dataclass(frozen=True)
class LiveProgram:
    """A program. ``command``: the words after ``streamrace device``, as ``--ranks 2 train.py --steps 3``.

    A run that takes longer than ``patience_s`` is ended. Its output is discarded; it writes its files again.
    """

    command: Sequence[str]
    runner: Runner
    patience_s: float = 600.0

    def run(
        self,
        timing: Timing,
        *,
        at_once: bool = False,
        folder: Path | None = None,
        unwritten: Poisoned | None = None,
    ) -> LiveOutcome:
        """Run the program in ``timing``. ``folder``: keeps the traces. ``unwritten``: see :meth:`Runner.run`.

        Raises RuntimeError as :meth:`Runner.run` does.
        """
        with contextlib.ExitStack() as stack:
            if folder is None:
                folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="witness-")))
            place = folder if "--ranks" in self.command[:1] else file_of(folder, 0)
            options = ["--trace", str(place), "--timing", str(timing)]
            status = self.runner.run(
                [*options, *self.command], at_once=at_once, patience_s=self.patience_s, unwritten=unwritten
            )
            try:
                return LiveOutcome(load(folder), status)
            except TraceError:  # the run was ended in the middle of a record
                return LiveOutcome({}, status)


def _environment() -> dict[str, str]:
    variables = {name: value for name, value in os.environ.items() if name not in _OF_LAUNCHERS}
    return {name: value for name, value in variables.items() if not name.startswith("TORCHELASTIC_")}
