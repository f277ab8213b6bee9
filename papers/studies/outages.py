"""Computes the cost of interruptions of a training run with checkpoints: in closed form, and event by event.

Young (1974, "A first order approximation to the optimum checkpoint interval") and Daly (2006, "A higher order estimate
of the optimum checkpoint interval for restart dumps"). Interruptions are a Poisson process, M seconds apart on average.
Work goes on for an interval tau, then a checkpoint is written, delta seconds. An interruption that needs a checkpoint
(a *rollback*) costs a downtime D, and the work since the last checkpoint is repeated. An interruption that another
group of ranks can heal, as it has the same state (a *repair*), costs a downtime D' and the step in progress. An
interruption of a downtime restarts it.

With rates l for all, l_r for rollbacks and l_p for repairs, an interval costs on average, exactly,

    U = (e^{l_r (tau + delta)} - 1) / l_r            seconds in which work or a checkpoint goes on
    T = U + l_r U d(D) + l_p U (d(D') + step/2)      d(x) = (e^{l x} - 1) / l, a downtime with restarts

and T is Daly's M e^{D/M} (e^{(tau + delta)/M} - 1) where there are no repairs. The best interval does not depend on
downtimes: it solves tau / M_r = 1 - e^{-(tau + delta) / M_r}, and sqrt(2 delta M_r) (Young) approximates it.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

_RUNS = 100
_STEPS = 50


@dataclass(frozen=True)
class Outages:
    """Rates and durations, in seconds. ``between``: mean time between interruptions; ``repairable``: the part of them
    that another group can heal; ``write``: of a checkpoint; ``rollback``, ``repair``: downtimes; ``step``: of training.
    """

    between: float
    write: float
    rollback: float
    repairable: float = 0.0
    repair: float = 0.0
    step: float = 0.0

    @property
    def rollbacks(self) -> float:
        """Return the mean seconds between rollbacks; infinite where each interruption can be repaired."""
        return self.between / (1 - self.repairable) if self.repairable < 1 else math.inf

    @property
    def young(self) -> float:
        """Return the seconds between checkpoints by Young's formula."""
        return math.sqrt(2 * self.write * self.rollbacks)

    @property
    def best(self) -> float:
        """Return the best seconds between checkpoints, exactly; infinite where nothing is ever rolled back."""
        if math.isinf(self.rollbacks):
            return math.inf
        ratio = self.write / self.rollbacks
        found = math.sqrt(2 * ratio)
        for _ in range(_STEPS):  # Newton's method: the function is convex, and Young's value lies beyond the root
            found -= (found + math.expm1(-found - ratio)) / -math.expm1(-found - ratio)
        return found * self.rollbacks

    def lost(self, interval: float) -> float:
        """Return the lost part of the time, with a checkpoint after every ``interval`` seconds of work."""
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
        """Return the expected seconds until a downtime passes without an interruption."""
        return self.between * math.expm1(downtime / self.between)


def played(outages: Outages, interval: float, *, intervals: int, seed: int = 0) -> tuple[float, float]:
    """Simulate event by event, in 100 runs of ``intervals`` intervals: return the lost part of the time and its
    standard error, from the spread of the runs. Uses nothing of the closed form.
    """
    drawn = random.Random(seed)
    clocks = [_play(outages, interval, intervals, drawn) for _ in range(_RUNS)]
    mean = sum(clocks) / _RUNS
    spread = math.sqrt(sum((clock - mean) ** 2 for clock in clocks) / (_RUNS - 1) / _RUNS)
    saved = intervals * interval
    return 1 - saved / mean, saved / mean**2 * spread


def _play(outages: Outages, interval: float, intervals: int, drawn: random.Random) -> float:
    """Return the seconds until ``intervals`` intervals are saved."""
    clock, need = 0.0, interval + outages.write
    left = drawn.expovariate(1 / outages.between)  # until the next interruption
    for _ in range(intervals):
        busy = 0.0  # since the last checkpoint
        while left < need - busy:
            clock, busy = clock + left, busy + left
            repaired = drawn.random() < outages.repairable
            down = outages.repair if repaired else outages.rollback
            left = drawn.expovariate(1 / outages.between)
            while left < down:  # interrupted again during the downtime
                clock += left
                left = drawn.expovariate(1 / outages.between)
            clock, left = clock + down, left - down
            if not repaired:
                busy = 0.0
            elif outages.step:
                busy -= busy % outages.step  # the step in progress
        clock, left = clock + need - busy, left - (need - busy)
    return clock
