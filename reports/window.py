"""Defines the window around two racing accesses: the streams of a rank as lanes, and the work of each over time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from streamrace.detectors import Side

Kind = Literal["kernel", "collective", "wait", "free"]


@dataclass(frozen=True)
class Slice:
    """A piece of work, or the host's wait. ``start`` and ``end`` in virtual nanoseconds.

    ``kernel``: without its namespace. ``parameter``: the one that it writes, else the one that it reads ("" without a
    label). ``op``: its number in the trace (-1: the host's). ``place``: the innermost line of source.
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
        """Return when the work touches memory as this side, by the detector's rule: a collective reads at its start."""
        at_start = self.kind == "free" or (self.is_collective and side.access == "read")
        return self.start if at_start else self.end


@dataclass(frozen=True)
class Window:
    """The window of one example of a race, all on one rank.

    ``lanes``: in reading order: host, compute, its helper streams, groups. ``slices``: by start; ``first`` and
    ``second`` are two of them, in the order of issue. ``left_out``: count of the window's slices that are not kept.
    """

    start: int
    end: int
    lanes: tuple[str, ...]
    slices: tuple[Slice, ...]
    first: Slice
    second: Slice
    left_out: int

    def shown(self, most: int) -> list[str]:
        """Return at most ``most`` lanes: those of the two accesses, and of the others those with slices."""
        busy = {piece.lane for piece in self.slices}
        racing = list(dict.fromkeys((self.first.lane, self.second.lane)))
        wanted = {*racing, *[lane for lane in self.lanes if lane in busy and lane not in racing][: most - len(racing)]}
        return [lane for lane in dict.fromkeys((*self.lanes, *racing)) if lane in wanted]
