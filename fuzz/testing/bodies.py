"""Runs the body of a test on the simulated accelerator: alone, or on several ranks; each time from the same state."""

from __future__ import annotations

import gc
import inspect
import os
import random
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import msgpack
import numpy as np
import torch

from fuzz import streams
from fuzz.streams import Value, seeing, watch_result
from repro.accelerator.costs import Timing
from repro.accelerator.device import Device
from repro.accelerator.recorder import bytes_of
from repro.cluster import RankFailed
from repro.replay.record_old import record, record_ranks
from repro.replay.recording import Recording
from repro.values import dtype_name, dtype_of

Body = Callable[[], object]
Tell = Callable[[BaseException], str]


class Problem(Exception):
    """The test cannot be run under fuzzed timings. One sentence."""


@dataclass(frozen=True)
class Failure:
    """What the body raised. ``line``: the error in one line; ``text``: as told by the rank that it comes from.

    ``output``: what that rank had printed; ``error``: the exception itself where it was raised in this process.
    """

    kind: str
    line: str
    text: str
    output: str = ""
    error: BaseException | None = None


@dataclass(frozen=True)
class Run:
    """One run of the body. ``values``: by rank in the order of :func:`watch`. Without ``recording`` it has none."""

    recording: Recording | None
    values: tuple[Value, ...]
    failure: Failure | None


class Bodies:
    """Runs ``body``. ``folder`` takes the files of ranks; ``tell`` makes a text of what one raised."""

    def __init__(self, body: Body, ranks: int, seed: int, folder: Path, tell: Tell) -> None:
        self._body = body
        self._ranks = ranks
        self._seed = seed
        self._folder = folder
        self._tell = tell
        self._runs = 0

    def run(self, timing: Timing) -> Run:
        """Run it live under ``timing``. Raises :class:`Problem`, and ReplayError for what cannot be replayed."""
        gc.collect()  # what the run before has left
        return self._alone(timing) if self._ranks == 1 else self._together(timing)

    def _alone(self, timing: Timing) -> Run:
        failures: list[Failure] = []
        values: list[Value | None] = []
        held: object = None
        worked = False

        def program(device: Device) -> None:
            __tracebackhide__ = True
            nonlocal values, held, worked
            with seeing() as values:
                try:
                    held = self._execute(device)
                except (KeyboardInterrupt, SystemExit):
                    raise
                except BaseException as error:  # pytest.fail() raises a BaseException
                    failures.append(Failure(type(error).__name__, line_of(error), "", error=error))
                worked = device.journal.ops > 0

        recording = None
        try:
            recording = record(program, timing)
        except Exception as error:
            if not failures:
                if worked:
                    raise
                raise _idle() from error
        return Run(recording, tuple(value for value in values if value is not None), failures[0] if failures else None)

    def _together(self, timing: Timing) -> Run:
        self._runs += 1
        folder = self._folder / f"run{self._runs}"
        folder.mkdir(parents=True)

        def said(rank: int) -> Path:
            return folder / f"rank{rank}.said"

        held: object = None

        def program(device: Device) -> None:
            __tracebackhide__ = True
            nonlocal held
            failed = None
            with seeing() as values:
                try:
                    held = self._execute(device)
                except BaseException as error:
                    sys.stdout.flush()
                    printed = (folder / "logs" / f"rank{device.rank}.log").read_text(errors="replace")
                    failed = [type(error).__name__, line_of(error), self._tell(error), printed]
                    raise
                finally:
                    told = packed([value for value in values if value is not None])
                    message = {"values": told, "failed": failed, "ops": device.journal.ops}
                    said(device.rank).write_bytes(msgpack.packb(message))

        lost: RankFailed | None = None
        recording = None
        try:
            with warnings.catch_warnings():  # pytest may make errors of warnings
                warnings.filterwarnings("ignore", message=".*fork.*", category=DeprecationWarning)
                recording = record_ranks(program, folder, timing)
        except RankFailed as error:
            lost = error
        except Exception as error:
            if not any(read(said(rank))["ops"] for rank in range(self._ranks)):
                raise _idle() from error
            raise
        messages = {rank: read(said(rank)) for rank in range(self._ranks) if said(rank).exists()}
        values = tuple(value for rank, message in messages.items() for value in unpacked(rank, message["values"]))
        failure = None
        if lost is not None:
            told = messages.get(lost.rank, {}).get("failed") or ("RankFailed", str(lost), str(lost), "")
            kind, line, text, printed = told
            failure = Failure(kind, line, f"on rank {lost.rank}:\n{text}", printed)
        return Run(recording, values, failure)

    def _execute(self, device: Device) -> object:
        """Gives what has to be held until the device is done: the memory of the test ends with the test.

        What a function's end frees, nobody is handed again here, and no race can come of it.
        """
        device.sites.skipped = (*device.sites.skipped, streams.__file__)
        seed(self._seed)
        __tracebackhide__ = True
        held: list[object] = []
        with outermost(self._body, held):
            held.append(self._body())
        watch_result(held[-1])
        with device.quiet():
            device.timeline.drain()  # an error in work that is done only now is the body's too
        return held


@contextmanager
def steady() -> Iterator[None]:
    """Inside, runs can be compared: one thread (sums), no collector, which would free when it likes; all put back."""
    threads, enabled, frozen = torch.get_num_threads(), gc.isenabled(), gc.get_freeze_count()
    states = random.getstate(), np.random.get_state(), torch.get_rng_state()
    interface = os.environ.get("GLOO_SOCKET_IFNAME")
    torch.set_num_threads(1)  # and forked thread pools hang
    # gloo asks for a name that resolves; ranks of one machine need no more than loopback
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo" if os.path.isdir("/sys/class/net/lo") else "lo0")
    gc.collect()
    if not frozen:
        gc.freeze()  # or every run would search all that was imported
    gc.disable()
    try:
        yield
    finally:
        if not frozen:
            gc.unfreeze()
        if enabled:
            gc.enable()
        if interface is None:
            os.environ.pop("GLOO_SOCKET_IFNAME", None)
        torch.set_num_threads(threads)
        random.setstate(states[0])
        np.random.set_state(states[1])
        torch.set_rng_state(states[2])


def seed(number: int) -> None:
    """All that draws numbers begins from here."""
    random.seed(number)
    np.random.seed(number % 2**32)
    torch.manual_seed(number)


@contextmanager
def outermost(body: Body, held: list[object]) -> Iterator[None]:
    """Holds the frame of the test function that is called inside, and so its variables."""
    function = inspect.unwrap(body.func if isinstance(body, partial) else body)
    code = getattr(function, "__code__", None)
    listen: Callable[[Any], None]
    if sys.getprofile() is None:
        listen = sys.setprofile
    elif sys.gettrace() is None:  # the test is profiled
        listen = sys.settrace
    else:
        yield
        return

    def called(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and code in (frame.f_code, None):
            held.append(frame)
            listen(None)

    listen(called)
    try:
        yield
    finally:
        listen(None)


def _idle() -> Problem:
    return Problem("the test gives the simulated device no work: there is no timing to fuzz")


def line_of(error: BaseException) -> str:
    """What it is and what it says, in one line."""
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0]}" if text else type(error).__name__


def read(path: Path) -> dict[str, Any]:
    """What a rank has said."""
    message: dict[str, Any] = msgpack.unpackb(path.read_bytes())
    return message


def packed(values: Sequence[Value]) -> list[tuple[str, str, list[int], bytes]]:
    """Values as a rank says them."""
    return [(one.name, dtype_name(one.tensor.dtype), list(one.tensor.shape), bytes_of(one.tensor)) for one in values]


def unpacked(rank: int, told: Sequence[Any]) -> list[Value]:
    return [Value(rank, name, _tensor(dtype, shape, data)) for name, dtype, shape, data in told]


def _tensor(dtype: str, shape: list[int], data: bytes) -> torch.Tensor:
    if not data:
        return torch.empty(shape, dtype=dtype_of(dtype), device="cpu")
    return torch.frombuffer(bytearray(data), dtype=dtype_of(dtype)).reshape(shape)
