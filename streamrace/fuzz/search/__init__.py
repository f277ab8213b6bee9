"""Searches for timings that make training diverge. Each search has a file of its own, which names its source."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from streamrace.fuzz.subject import Subject
from streamrace.fuzz.verdict import ReplayVerdict
from streamrace.replay.deviations import Deviation
from streamrace.replay.graph import EffectOrder


@dataclass(frozen=True)
class Execution:
    """An execution by a search, and its verdict.

    ``deviations``: from the recorded timing; None if an ``order`` of the effects was executed instead, for which
    :func:`streamrace.fuzz.search.reversals.deviations_of` finds a timing.
    """

    verdict: ReplayVerdict
    deviations: tuple[Deviation, ...] | None = None
    order: EffectOrder | None = None


class Search(Protocol):
    """A way to choose timings."""

    @property
    def name(self) -> str:
        """Return the name of the search, one word."""

    def timings(self, subject: Subject, seed: int) -> Iterator[Execution]:
        """Yield one execution after the other, each when requested. The same for the same seed; may end."""
