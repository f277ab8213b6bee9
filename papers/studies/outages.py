"""What interruptions cost a training run that saves checkpoints: closed forms, and the same event by event.

Young (1974, "A first order approximation to the optimum checkpoint interval") and Daly (2006, "A higher order estimate
of the optimum checkpoint interval for restart dumps"). Interruptions come at random, without memory, M seconds apart on
average. Work goes on for an interval tau, then a checkpoint is written, delta seconds. An interruption that needs a
checkpoint (a *rollback*) costs a downtime D, and what was done since the last one is done again. One that another
group of ranks can heal, as it has the same state (a *repair*), costs a downtime D' and a step that was under way.
An interruption of a downtime begins it anew.

With rates l for all, l_r for rollbacks and l_p for repairs, an interval costs on average, exactly,

    U = (e^{l_r (tau + delta)} - 1) / l_r            seconds in which work or a checkpoint goes on
    T = U + l_r U d(D) + l_p U (d(D') + step/2)      d(x) = (e^{l x} - 1) / l, a downtime that is begun anew

and T is Daly's M e^{D/M} (e^{(tau + delta)/M} - 1) where there are no repairs. The best interval does not depend on
downtimes: it solves tau / M_r = 1 - e^{-(tau + delta) / M_r}, and sqrt(2 delta M_r) (Young) comes near to it.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

_RUNS = 100
_STEPS = 50


@dataclass(frozen=True)
class Outages:
    """``between``: seconds from one interruption to the next, on average; ``repairable``: the part of them that is.

    ``write``: of a checkpoint, ``rollback`` and ``repair``: downtimes, ``step``: of training; all seconds.
    """

    between: float
    write: float
    rollback: float
    repairable: float = 0.0
    repair: float = 0.0
    step: float = 0.0

    @property
    def rollbacks(self) -> float:
        """Seconds from one to the next; infinite where each interruption can be repaired."""
        return self.between / (1 - self.repairable) if self.repairable < 1 else math.inf

    @property
    def young(self) -> float:
        """Seconds between checkpoints, Young's."""
        return math.sqrt(2 * self.write * self.rollbacks)

    @property
    def best(self) -> float:
        """Seconds between checkpoints, exactly. Infinite where nothing is ever rolled back."""
        if math.isinf(self.rollbacks):
            return math.inf
        ratio = self.write / self.rollbacks
        found = math.sqrt(2 * ratio)
        for _ in range(_STEPS):  # Newton's: it is convex, and Young's lies beyond the root
            found -= (found + math.expm1(-found - ratio)) / -math.expm1(-found - ratio)
        return found * self.rollbacks

    def lost(self, interval: float) -> float:
        """The part of the time that brings training no further, with a checkpoint after every ``interval`` seconds."""
        if math.isinf(interval):  # no checkpoint, as there are no rollbacks
            exposed, share = 1.0, 1.0
        else:
            busy = interval + self.write
            exposed = self.rollbacks * math.expm1(busy / self.rollbacks) if math.isfinite(self.rollbacks) else busy
            share = interval
        often = 1 / self.between
        again = (1 - self.repairable) * self._begun_anew(self.rollback)
        healed = self.repairable * (self._begun_anew(self.repair) + self.step / 2)
        return 1 - share / (exposed * (1 + often * (again + healed)))

    def _begun_anew(self, downtime: float) -> float:
        """Seconds until a downtime has passed without an interruption."""
        return self.between * math.expm1(downtime / self.between)


def played(outages: Outages, interval: float, *, intervals: int, seed: int = 0) -> tuple[float, float]:
    """The same event by event, in 100 runs of so many intervals: the part of the time that is lost, and its standard
    error, from the spread of the runs. A clock, what is done, what is saved: nothing of the closed form is used.
    """
    drawn = random.Random(seed)
    clocks = [_play(outages, interval, intervals, drawn) for _ in range(_RUNS)]
    mean = sum(clocks) / _RUNS
    spread = math.sqrt(sum((clock - mean) ** 2 for clock in clocks) / (_RUNS - 1) / _RUNS)
    saved = intervals * interval
    return 1 - saved / mean, saved / mean**2 * spread


def _play(outages: Outages, interval: float, intervals: int, drawn: random.Random) -> float:
    """Seconds until so many intervals are saved."""
    clock, need = 0.0, interval + outages.write
    left = drawn.expovariate(1 / outages.between)  # until the next interruption
    for _ in range(intervals):
        busy = 0.0  # since the last checkpoint
        while left < need - busy:
            clock, busy = clock + left, busy + left
            repaired = drawn.random() < outages.repairable
            down = outages.repair if repaired else outages.rollback
            left = drawn.expovariate(1 / outages.between)
            while left < down:  # again, before it was up
                clock += left
                left = drawn.expovariate(1 / outages.between)
            clock, left = clock + down, left - down
            if not repaired:
                busy = 0.0
            elif outages.step:
                busy -= busy % outages.step  # the step that was under way
        clock, left = clock + need - busy, left - (need - busy)
    return clock
