"""Describes races: their sides, occurrences and memory.

Races are grouped by the places in source code they come from: training repeats the same pair of
places thousands of times, and it is the pair that has to be fixed.

This is the only description of a race: files hold the fields of these classes by their names (:func:`plain`), and code
that reads the files, or builds tables of races, takes fields and types from here.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, is_dataclass
from typing import Any, Literal, NamedTuple

from streamrace.detectors.streams import stream_named
from streamrace.trace import wording
from streamrace.trace.records import Frame

AccessKind = Literal["read", "write", "free"]
RaceKind = Literal["write-write", "read-write", "write-read", "freed", "reused"]


class Name(NamedTuple):
    """The meaning of some bytes: ``kind`` (primary, secondary, gathered, ...) of parameter ``name``."""

    kind: str
    name: str


class Moment(NamedTuple):
    """The time of one side of a race.

    ``op`` is the operation's number in the trace (None for a free); ``start`` and ``end`` are its
    virtual nanoseconds; step, micro-batch and phase are those of the host when it issued the operation.
    """

    op: int | None
    step: int
    micro_batch: int
    phase: str
    start: int
    end: int


class Occurrence(NamedTuple):
    """One pair of racing accesses: bytes ``lo`` to ``hi`` (exclusive) of ``block``, all on ``rank``.

    ``manifested``: in the timing of this trace the later-issued access took effect strictly before the
    earlier-issued one; else the race is latent. A launch and a collective's writes take effect at the
    end, a collective's reads at its start, a free when the next owner's first work could start: at the free, or when
    the streams that order the reuse (the owner's and the recorded ones) are done, if that is later.
    ``slack_ns``: by how many nanoseconds the later-issued access took effect after the other; below 0 if
    manifested.
    """

    rank: int
    block: int
    lo: int
    hi: int
    first: Moment
    second: Moment
    manifested: bool
    slack_ns: int


@dataclass(frozen=True)
class Side:
    """One of the two accesses: kernel, access, stream and stack (innermost frame first).

    ``issuer`` names the stream that a collective was issued from, whose order its own stream takes over.
    ``allocated``: for the second side of a race about memory that was freed and handed out again, the stack at which
    its owner allocated the memory (no frames: not known). None: the two sides have one owner.
    """

    kernel: str
    access: AccessKind
    stream: str
    issuer: str = ""
    stack: tuple[Frame, ...] = ()
    allocated: tuple[Frame, ...] | None = None

    def __str__(self) -> str:
        return f"{self.access} by {describe(self.kernel, self.stack)} on {stream_named(self.stream)}"

    @property
    def place(self) -> str:
        """Return the innermost ``file:line``; empty without a stack."""
        frame = site(self.stack)
        return wording.line(frame.file, frame.line, path=True) if frame else ""


@dataclass(frozen=True)
class Race:
    """All occurrences with the same kernels, accesses, innermost frames and streams.

    ``first`` is the side that the host issued first. ``occurrences`` counts pairs of accesses,
    ``manifested`` those whose order was reversed in this timing. ``slack_ns`` is the smallest of all occurrences:
    how close the two came in this timing, or, below 0, by how much their order was reversed at worst. ``examples``
    are the first few occurrences of the lowest ranks, and the stacks are those of ``examples[0]``. ``names``: the
    contents of the bytes that both touch (of the range that bounds these bytes, for strided views).
    """

    kind: RaceKind
    first: Side
    second: Side
    occurrences: int
    manifested: int
    slack_ns: int
    ranks: tuple[int, ...]
    names: tuple[Name, ...]
    examples: tuple[Occurrence, ...]

    @property
    def is_timed(self) -> bool:
        """Check whether the trace knows when the work ran: that of a real GPU does not."""
        sides = [side for example in self.examples for side in (example.first, example.second)]
        return all(side.op is None or side.end >= 0 for side in sides)

    @property
    def missing_wait(self) -> str:
        """Return one sentence that names the stream that never waits, and the stream it should wait for."""
        access = describe(self.first.kernel, self.first.stack)
        waiting = self.second.issuer or self.second.stream
        sentence = f"{stream_named(waiting)} never waits for {stream_named(self.first.stream)} after {access}"
        if self.second.issuer:
            sentence += f"; {stream_named(self.second.stream)} takes its order from it"
        if self.second.allocated is not None:
            frame = site(self.second.allocated)
            place = f"{wording.frame(frame)} " if frame else ""
            return (
                f"{sentence}, and no record_stream tells the allocator of that use before the memory is freed: "
                f"the allocation {place}got it again"
            )
        if self.kind == "freed":
            return f"{sentence}, and no record_stream tells the allocator of that use before the memory is freed"
        return sentence

    @property
    def memory(self) -> list[str]:
        """Return the contents of the bytes, each name once."""
        return sorted({f"{name.kind} {name.name}" for name in self.names})

    def as_dict(self) -> dict[str, Any]:
        """Return the race as JSON-ready data."""
        head = dict.fromkeys(("kind", "first", "second"))  # fixes the order of these fields in the file
        return {**head, "missing_wait": self.missing_wait, **plain(self)}


def plain(value: Any) -> Any:
    """Return dataclasses and named tuples as dictionaries of their fields, tuples as lists, other values unchanged."""
    if is_dataclass(value):
        return {field.name: plain(getattr(value, field.name)) for field in fields(value)}
    if hasattr(value, "_asdict"):
        return {name: plain(item) for name, item in value._asdict().items()}
    return [plain(item) for item in value] if isinstance(value, tuple) else value


def site(frames: tuple[Frame, ...]) -> Frame | None:
    """Return the frame that identifies a stack: the innermost one."""
    return frames[0] if frames else None


def describe(kernel: str, frames: tuple[Frame, ...]) -> str:
    """Return a kernel and its place in short form: ``copy_ (partition_parameters.py:1946 _partition_param_sec)``."""
    frame = site(frames)
    return wording.operator(kernel) + (f" ({wording.frame(frame)})" if frame else "")
