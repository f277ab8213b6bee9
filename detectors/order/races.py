"""What a race is, as told to a reader or a program.

Races are grouped by the places in source code they come from: training repeats the same pair of
places thousands of times, and it is the pair that has to be mended.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import PurePath
from typing import Any, Literal, NamedTuple

from simgpu.trace import Frame

AccessKind = Literal["read", "write", "free"]
RaceKind = Literal["write-write", "read-write", "write-read", "freed", "reused"]


class Name(NamedTuple):
    """What some bytes are: ``kind`` (primary, secondary, gathered, ...) of parameter ``name``."""

    kind: str
    name: str


class Moment(NamedTuple):
    """When one side of a race happened.

    ``op`` is the operation's number in the trace (None for a free); ``start`` and ``end`` are its
    virtual nanoseconds; step, micro-batch and phase are those of the host when it issued it.
    """

    op: int | None
    step: int
    micro_batch: int
    phase: str
    start: int
    end: int


class Occurrence(NamedTuple):
    """One pair of racing accesses: bytes ``lo`` to ``hi`` (exclusive) of ``block``, all on ``rank``.

    ``shown``: in the timing of this trace the later-issued access took effect strictly before the
    earlier-issued one. A launch and a collective's writes take effect at the end, a collective's
    reads at its start, a free when the next owner's first work could start: at the free, or when what orders
    the reuse (the owner's stream, the recorded ones) is done, if that is later.
    ``margin_ns``: by how many nanoseconds the later-issued access took effect after the other; below 0 where shown.
    """

    rank: int
    block: int
    lo: int
    hi: int
    first: Moment
    second: Moment
    shown: bool
    margin_ns: int


@dataclass(frozen=True)
class Side:
    """One of the two accesses: which kernel, on which stream, from where (innermost frame first).

    ``issuer`` names the stream that a collective was issued from, whose order its own stream takes over.
    ``allocated``: of the second side of a race about memory that was freed and handed out again, where its
    owner got it (no frames: not known). None: the two sides have one owner.
    """

    kernel: str
    access: AccessKind
    stack: tuple[Frame, ...]
    stream: str
    issuer: str = ""
    allocated: tuple[Frame, ...] | None = None

    def __str__(self) -> str:
        return f"{self.access} by {describe(self.kernel, self.stack)} on stream {self.stream!r}"


@dataclass(frozen=True)
class Race:
    """All occurrences with the same kernels, accesses, innermost frames and streams.

    ``first`` is the side that the host issued first. ``occurrences`` counts pairs of accesses,
    ``shown`` those whose order was reversed in this timing. ``margin_ns`` is the smallest of all occurrences: how close
    the two came in this timing, or, below 0, by how much their order was reversed at worst. ``examples`` are the first
    few occurrences of the lowest ranks, and the stacks are those of ``examples[0]``. ``names`` tells what lies in the
    bytes that both touch (in the range that bounds them, where views are strided).
    """

    kind: RaceKind
    first: Side
    second: Side
    occurrences: int
    shown: int
    margin_ns: int
    ranks: tuple[int, ...]
    names: tuple[Name, ...]
    examples: tuple[Occurrence, ...]

    @property
    def missing_wait(self) -> str:
        """One sentence: which stream never waits for which."""
        where = describe(self.first.kernel, self.first.stack)
        waiting = self.second.issuer or self.second.stream
        sentence = f"stream {waiting!r} never waits for stream {self.first.stream!r} after {where}"
        if self.second.issuer:
            sentence += f"; stream {self.second.stream!r} takes its order from it"
        if self.second.allocated is not None:
            frame = site(self.second.allocated)
            place = f"{_place(frame)} " if frame else ""
            return (
                f"{sentence}, and no record_stream tells the allocator of that use before the memory is freed: "
                f"the allocation {place}got it again"
            )
        if self.kind == "freed":
            return f"{sentence}, and no record_stream tells the allocator of that use before the memory is freed"
        return sentence

    def as_dict(self) -> dict[str, Any]:
        """The race as JSON-ready data."""
        return {
            "kind": self.kind,
            "first": _side(self.first),
            "second": _side(self.second),
            "missing_wait": self.missing_wait,
            "occurrences": self.occurrences,
            "shown": self.shown,
            "margin_ns": self.margin_ns,
            "ranks": list(self.ranks),
            "names": [name._asdict() for name in self.names],
            "examples": [
                {**example._asdict(), "first": example.first._asdict(), "second": example.second._asdict()}
                for example in self.examples
            ],
        }


def site(frames: tuple[Frame, ...]) -> Frame | None:
    """The frame that stands for a stack: the innermost one."""
    return frames[0] if frames else None


def describe(kernel: str, frames: tuple[Frame, ...]) -> str:
    """A kernel and its place in short: ``copy_ (partition_parameters.py:1946 _partition_param_sec)``."""
    short = kernel.rpartition("::")[2]
    frame = site(frames)
    if frame is None:
        return short
    return f"{short} ({_place(frame)})"


def _place(frame: Frame) -> str:
    return f"{PurePath(frame.file).name}:{frame.line} {frame.function}"


def _side(side: Side) -> dict[str, Any]:
    return {
        "kernel": side.kernel,
        "access": side.access,
        "stream": side.stream,
        "issuer": side.issuer,
        "stack": [frame._asdict() for frame in side.stack],
        "allocated": None if side.allocated is None else [frame._asdict() for frame in side.allocated],
    }
