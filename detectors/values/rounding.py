"""Bounds how far two sums of the same numbers may differ because they were summed in another order.

N. J. Higham and T. Mary, "A New Approach to Probabilistic Rounding Error Analysis", SIAM J. Sci.
Comput. 41(5), 2019: if rounding errors are independent and of mean zero, a sum of n terms in any order is within
``exp(lambda sqrt(n) u + n u^2 / (1 - u)) - 1`` of the exact one, relative to the sum of absolute values, with
probability at least ``1 - 2 n exp(-lambda^2 (1 - u)^2 / 2)`` (theorem 3.1; theorem 2.4 has no factor n, and is of one
term). Lambda is such that two sums fail it once in a million; ``n u / (1 - n u)``, always true, is taken if smaller.
Assumed: sums are accumulated in fp32 (fp64 under fp64) whatever is stored, u = 2^-24; one rounding more for the mean
or the root; the rounding to bf16 or fp16 enters once, for the result. A loss is a sum over its tokens, a gradient
norm over all parameters; if their number is not known, 16384 and 2^20 are assumed.
"""

from __future__ import annotations

import math

UNKNOWN = {"tokens": 2**14, "parameters": 2**20}  # numbers of terms that are assumed if not known
_FAILS = 1e-6  # probability that rounding alone leaves the bound
_ACCUMULATED = {"fp64": 2.0**-53}  # unit roundoff; all others accumulate in fp32
_STORED = {"fp64": 0.0, "fp32": 0.0, "bf16": 2.0**-8, "fp16": 2.0**-11}  # of one more rounding


def rounding_bound(terms: int, precision: str) -> float:
    """Return how far two sums of the same ``terms`` may differ by their order, relative to the larger: see the top.

    ``inf``: unbounded. 0 for a precision that is not known: no difference is explained.
    """
    if precision not in _STORED:
        return 0.0
    n, u = terms + 1, _ACCUMULATED.get(precision, 2.0**-24)  # one rounding more, for the mean or the root
    strength = math.sqrt(2 * math.log(4 * n / _FAILS)) / (1 - u)  # lambda; each of two sums may fail half as often
    exponent = strength * math.sqrt(n) * u + n * u * u / (1 - u)
    error = math.expm1(exponent) if exponent < 1 else math.inf
    if n * u < 0.5:
        error = min(error, n * u / (1 - n * u))
    error += (1 + error) * _STORED[precision]
    return 2 * error / (1 - error) if error < 1 else math.inf
