"""Which occurrences of a race are tried before it is said to do no harm."""

from __future__ import annotations

from collections.abc import Sequence

from detectors.order.races import Occurrence


def spread(occurrences: Sequence[Occurrence]) -> list[Occurrence]:
    """A few of all, which come by rank and time: the first, last and one between of the lowest rank, and of the highest
    one from the middle.

    Training repeats a pair in each layer and step. What it spoils may be there from the second step on only, or in one
    layer, so occurrences beside each other say much the same.
    """
    lowest, highest = (
        [one for one in occurrences if one.rank == rank] for rank in (occurrences[0].rank, occurrences[-1].rank)
    )
    some = (lowest[0], highest[len(highest) // 2], lowest[-1], lowest[len(lowest) // 4])
    return [*dict.fromkeys(some)]
