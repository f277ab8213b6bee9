"""Defines the interface of a detector, and the kinds of findings."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias, TypeVar

from streamrace.detectors.hangs import Hang, MayHang
from streamrace.detectors.kernel_defects import KernelDefect
from streamrace.detectors.order.races import Race, describe, site
from streamrace.trace import wording
from streamrace.trace.records import Frame, TraceRecord

_RANGES = 3  # printed at most


@dataclass(frozen=True)
class Uncovered:
    """Reads of bytes that nothing wrote, from one place: number of reads, largest number of bytes, parameters."""

    kernel: str
    stack: tuple[Frame, ...]
    reads: int
    nbytes: int
    names: tuple[str, ...]
    ranks: tuple[int, ...]

    def as_dict(self) -> dict[str, Any]:
        return {**vars(self), "stack": [frame._asdict() for frame in self.stack]}

    def sentence(self) -> str:
        """Return a sentence for the user that states what is proven."""
        place = f"{self.stack[0].function.rpartition('.')[2]}, " if self.stack else ""
        others = f" and {wording.count(len(self.names) - 1, 'other')}" if len(self.names) > 1 else ""
        return (
            f"{self.kernel} ({place}{self.reads} times) reads up to {self.nbytes} bytes of the secondary partition of "
            f"{self.names[0]}{others} that nothing wrote"
        )


@dataclass(frozen=True)
class UnwrittenRead:
    """Reads of unwritten memory allocated at one place: whether anything depends on them is not known.

    ``kernel`` and ``stack``: the first read, preferably by a kernel that computes. ``ranges``: unwritten parts of its
    block of ``nbytes`` bytes. ``count``: such blocks; ``blocks``: the first of them, each with its rank.
    ``untouched``: no block of that place was written by then, not even a part.
    """

    kernel: str
    stack: tuple[Frame, ...]
    allocated: tuple[Frame, ...]
    ranges: tuple[tuple[int, int], ...]
    nbytes: int
    count: int
    blocks: tuple[tuple[int, int], ...]
    untouched: bool

    def sentence(self) -> str:
        """Return a clause for the user that describes the read, without a full stop."""
        unwritten = sum(hi - lo for lo, hi in self.ranges)
        ranges = ", ".join(f"{lo:,} to {hi:,}" for lo, hi in self.ranges[:_RANGES])
        rest = f" and {len(self.ranges) - _RANGES} more ranges" if len(self.ranges) > _RANGES else ""
        part = "all" if unwritten == self.nbytes else f"bytes {ranges}{rest}"
        others = f" (one of {self.count:,} like it)" if self.count > 1 else ""
        return (
            f"{describe(self.kernel, self.stack)} reads {unwritten:,} bytes that nothing had written, {part} of the "
            f"{self.nbytes:,} bytes{_at(self.allocated)}{others}"
        )


@dataclass(frozen=True)
class Uninitialised(UnwrittenRead):
    """Reads of unwritten memory on which something depends: proven by two runs that differ in that memory alone.

    ``reached``: host, collective, parameter or end; ``where``: the operation that is reached, with its line if known.
    """

    reached: str
    where: str

    def sentence(self) -> str:
        return f"{super().sentence()}, and the result reaches {self.where}"


@dataclass(frozen=True)
class GraphMemory:
    """Replays of a CUDA graph, or what follows them, that use memory which now holds another tensor.

    ``kind``: ``freed`` (after the capture), ``overwritten`` (as another tensor of the pool) or ``kept`` (from several
    replays, which write the same memory). ``allocated``: where the
    tensor that is meant was. ``other``: who has the memory now (freed; empty: nobody), or the kernel that overwrote it;
    ``other_stack``: where the former was allocated, or the latter was called. ``count``: such accesses.
    """

    kind: str
    access: str
    kernel: str
    stack: tuple[Frame, ...]
    allocated: tuple[Frame, ...]
    nbytes: int
    other: str
    other_stack: tuple[Frame, ...]
    count: int
    ranks: tuple[int, ...]

    def again(self, later: GraphMemory, ranks: tuple[int, ...]) -> GraphMemory:
        """Return the finding with one more access, and that as the example if it first has somebody else's memory."""
        return replace(later if later.other and not self.other else self, count=self.count + 1, ranks=ranks)

    def sentence(self) -> str:
        """Return a clause for the user that describes the access and its cure, without a full stop."""
        times = f" {wording.times(self.count)}" if self.count > 1 else ""
        uses = f"{_replayed(self.kernel, self.stack)} {self.access}s {self.nbytes:,} bytes{times}"
        meant, other = f"the tensor{_at(self.allocated)}", _replayed(self.other, self.other_stack)
        if self.kind == "kept":
            kept = f"which is kept from several replays: all hold what {other} wrote last"
            return f"{uses} of {meant}, {kept}. Keep a clone"
        if self.kind == "overwritten":
            return (
                f"{uses} of {meant}, after {other} has overwritten them as another tensor of the pool. Allocate what "
                "must outlive a replay before the capture, and replay graphs of one pool in the order of their capture"
            )
        now = f"The memory is now that of the tensor{_at(self.other_stack)}" if self.other else "Nothing has it now"
        return f"{uses} of {meant}, which was freed after the capture. {now}. Keep the tensor as long as the graph"


def _replayed(kernel: str, stack: tuple[Frame, ...]) -> str:
    """Return a kernel and its place; of a captured launch also that of the replay."""
    if not stack or not wording.is_captured(stack[0]):
        return describe(kernel, stack)
    place = stack[0]._replace(function=stack[0].function.removesuffix(wording.CAPTURED))
    replay = next((frame for frame in stack if not wording.is_captured(frame)), None)
    where = f", replayed at {wording.frame(replay)}" if replay else ", captured"
    return f"{wording.operator(kernel)} ({wording.frame(place)}{where})"


def _at(stack: tuple[Frame, ...]) -> str:
    frame = site(stack)
    return f" allocated at {wording.frame(frame, path=True)}" if frame else ""


class Unexercised(str):
    """A sentence without a full stop: a feature was enabled but never used, so a clean verdict does not cover it."""

    __slots__ = ()


class Unseen(str):
    """A sentence without a full stop: some accesses cannot be in the trace, so no verdict is clean."""

    __slots__ = ()


Found: TypeAlias = Race | Uncovered | UnwrittenRead | KernelDefect | GraphMemory | Hang | MayHang | Unexercised | Unseen
_Kind = TypeVar("_Kind", bound=Found)


class Detector(ABC):
    """Reads the records of all ranks, each rank's in order; its findings do not depend on the interleaving.

    No detector may add an ordering edge to a run: a read of a value that synchronises hides the race it looks for.
    """

    @abstractmethod
    def feed(self, rank: int, records: Iterable[TraceRecord]) -> None:
        """Take the next records of ``rank``."""

    def finish(self) -> None:  # noqa: B027
        """End the input: no more records will come."""

    def waits(self, rank: int) -> bool:
        """Check whether ``rank``'s records are kept until other ranks' arrive: the others are better fed first."""
        return False

    @abstractmethod
    def findings(self) -> Sequence[Found]:
        """Return the findings so far."""


def found_by(detectors: Iterable[Detector], kind: type[_Kind]) -> list[_Kind]:
    """Return the findings of one kind."""
    return [finding for detector in detectors for finding in detector.findings() if isinstance(finding, kind)]
