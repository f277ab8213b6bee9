"""What one sees around two racing accesses: the streams of a rank as lanes, and what each did when."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from streamrace.detectors import Side

Kind = Literal["kernel", "collective", "wait", "free"]


@dataclass(frozen=True)
class Slice:
    """A piece of work, or the host's wait. ``start`` and ``end`` in virtual nanoseconds.

    ``kernel`` without its name space. ``parameter`` is what it writes, else what it reads ("" without a label).
    ``op`` is its number in the trace (-1: the host's). ``place`` is the innermost line of source.
    """

    lane: str
    kernel: str
    parameter: str
    start: int
    end: int
    op: int
    kind: Kind
    place: str

    @property
    def is_collective(self) -> bool:
        return self.kind == "collective"

    def effect(self, side: Side) -> int:
        """When it touches memory as this side of a race, as the detector has it: a collective reads when it starts."""
        at_start = self.kind == "free" or (self.is_collective and side.access == "read")
        return self.start if at_start else self.end


@dataclass(frozen=True)
class Window:
    """The window of one example of a race, all on one rank.

    ``lanes`` in the order in which one reads them: host, compute, what helps it, groups. ``slices`` by start; ``first``
    and ``second`` are two of them, as they were issued. ``left_out`` counts slices of the window that are not kept.
    """

    start: int
    end: int
    lanes: tuple[str, ...]
    slices: tuple[Slice, ...]
    first: Slice
    second: Slice
    left_out: int

    def shown(self, most: int) -> list[str]:
        """At most so many lanes: those of the two accesses, and of the others those in which something is."""
        busy = {one.lane for one in self.slices}
        racing = list(dict.fromkeys((self.first.lane, self.second.lane)))
        wanted = {*racing, *[lane for lane in self.lanes if lane in busy and lane not in racing][: most - len(racing)]}
        return [lane for lane in dict.fromkeys((*self.lanes, *racing)) if lane in wanted]
