"""What one sees around two racing accesses: the streams of a rank as lanes, and what each did when."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

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
