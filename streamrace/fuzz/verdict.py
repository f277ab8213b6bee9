"""Judges the effect of a timing on training."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from streamrace.replay.replayer import READ, Departure, ReplayOutcome, UsedValue

_PHASES = ("init", "forward", "backward", "step", "edit")


@dataclass(frozen=True)
class ReplayVerdict:
    """An execution compared with the reference: the same work, each piece done at once when it is issued.

    ``wrong``: places of the values used by training (:attr:`streamrace.replay.replayer.Replayer.looks`) whose bits
    differ; ``first``: the first of these in the order of the program, a parameter before a loss. ``bad``: the number of
    elements in them that are not finite. ``loss``: the largest absolute difference of a loss (NaN if one is NaN),
    ``final``: whether the final parameters differ. ``departure``: from there on the program itself, which does not run
    in a replay, might have behaved differently.
    """

    wrong: tuple[int, ...]
    first: UsedValue | None
    bad: int
    loss: float
    final: bool
    departure: Departure | None

    @property
    def diverged(self) -> bool:
        return bool(self.wrong)


def judge(looks: Sequence[UsedValue], reference: ReplayOutcome, outcome: ReplayOutcome) -> ReplayVerdict:
    """Compare every value that training uses. Values that the host reads are left out: a change is a departure."""
    nothing = ReplayVerdict((), None, 0, 0.0, False, outcome.departure)
    if outcome.checksums == reference.checksums:
        return nothing
    pairs = enumerate(zip(outcome.checksums, reference.checksums, strict=True))
    wrong = tuple(place for place, (now, then) in pairs if now != then and looks[place].kind != READ)
    if not wrong:
        return nothing
    first = min(wrong, key=lambda place: _position(looks[place]))
    return ReplayVerdict(
        wrong=wrong,
        first=looks[first],
        bad=sum(outcome.bad.get(place, 0) for place in wrong),
        loss=_largest(outcome.losses, reference.losses),
        final=any(looks[place].kind == "final" for place in wrong),
        departure=outcome.departure,
    )


def in_order(looks: Sequence[UsedValue]) -> list[int]:
    """Return the places of all values, in the order of the program."""
    return sorted(range(len(looks)), key=lambda place: _position(looks[place]))


def _position(look: UsedValue) -> tuple[object, ...]:
    return (
        look.kind == "final",
        look.step,
        look.micro_batch,
        _PHASES.index(look.phase) if look.phase in _PHASES else len(_PHASES),
        look.kind == "loss",
        look.probe,
        look.rank,
    )


def _largest(now: Mapping[int, float], then: Mapping[int, float]) -> float:
    """Return the largest difference of a loss: 0 if all are the same, even if infinite."""
    largest = 0.0
    for place, value in now.items():
        if value != then[place]:
            difference = abs(value - then[place])
            if math.isnan(difference):
                return math.nan
            largest = max(largest, difference)
    return largest
