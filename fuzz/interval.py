"""The confidence interval of a rate: the share of all timings that diverge, estimated from those that were tried."""

from __future__ import annotations

import math

_Z = 1.959964  # of the normal distribution: 95 % lie within so many standard deviations


def wilson(successes: int, trials: int) -> tuple[float, float]:
    """The score interval of Wilson 1927, 95 %: unlike the normal approximation it also holds for 0 of a few."""
    if trials == 0:
        return 0.0, 1.0
    rate, weight = successes / trials, _Z * _Z / trials
    centre = (rate + weight / 2) / (1 + weight)
    half = _Z * math.sqrt(rate * (1 - rate) / trials + weight / trials / 4) / (1 + weight)
    return max(0.0, centre - half), min(1.0, centre + half)
