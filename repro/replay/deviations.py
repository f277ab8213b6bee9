"""What one timing changes about another: the recorded one plus a few deviations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal, NamedTuple

from repro.accelerator.costs import Timing
from repro.replay.names import Names, OperationName
from repro.tokens import Jitter as Jitter
from repro.tokens import Stretch as Stretch


class Delay(NamedTuple):
    """One operation is delayed by ``ns`` (above 0).

    ``late``: it starts later (a collective: this rank arrives later, so all its ranks start later).
    ``long``: it takes longer (a collective: on this rank only).
    """

    operation: OperationName
    how: Literal["late", "long"]
    ns: int


Deviation = Delay | Stretch | Jitter


def deviate(base: Timing, deviations: Sequence[Deviation], names: Names) -> Timing:
    """``base`` with the deviations. Stretches of the same multiply, delays of the same add up.

    Raises :class:`repro.replay.names.UnknownOperation` for a delay of an operation that is not in ``names``,
    and :class:`ValueError` for more than one jitter.
    """
    slow, delays = dict(base.slow), dict(base.delays)
    jitters = [deviation for deviation in deviations if isinstance(deviation, Jitter)]
    if len(jitters) > 1:
        raise ValueError(f"a timing has one jitter, not {len(jitters)}")
    for deviation in deviations:
        if isinstance(deviation, Stretch):
            slow[deviation.what] = slow.get(deviation.what, 1.0) * deviation.factor
        elif isinstance(deviation, Delay):
            place = deviation.operation.rank, names.number(deviation.operation)
            late, long = delays.get(place, (0, 0))
            if deviation.how == "late":
                late += deviation.ns
            else:
                long += deviation.ns
            delays[place] = late, long
    jitter, seed = (jitters[0].percent / 100, jitters[0].seed) if jitters else (base.jitter, base.seed)
    return replace(base, slow=slow, jitter=jitter, seed=seed, delays=delays)
