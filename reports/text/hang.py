"""Tells a hang, or an order that may hang, in prose: what does not fit, how the ranks came there, and what to do."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from streamrace.detectors import Hang, MayHang
from streamrace.detectors.hangs import CURES, Issue

_RULE = (
    "NCCL compares nothing: a rank that has called a collective waits until all others of the group have called one, "
    "and takes whatever they called for it"
)
_QUEUE = (
    "The question: would the program come to its end if each GPU ran its collectives one after the other, in the order "
    "in which its host issued them? That is all that NCCL promises for several communicators"
)


class HangTelling(NamedTuple):
    """A hang told. ``number``: among the run's; ``sections``: title and sentences without a full stop."""

    number: int
    headline: str
    sections: Sequence[tuple[str, Sequence[str]]]


def telling(finding: Hang | MayHang, number: int, last: Mapping[int, Sequence[Issue]]) -> HangTelling:
    """Tell a finding. ``last``: the collectives that each rank issued last, empty if the traces are gone."""
    sections: list[tuple[str, Sequence[str]]]
    if isinstance(finding, MayHang):
        sections = [
            ("The rule", (_QUEUE,)),
            ("The circle", tuple(_circle(finding))),
            ("What to do", (CURES[finding.kind],)),
        ]
        return HangTelling(number, finding.sentence(), sections)
    two = [finding.first.rank, finding.second.rank]
    came = [clause for rank in two for clause in _came(rank, last.get(rank, ()))]
    sections = [
        ("The rule", (_RULE,)),
        ("How they came there", came or ("The run has no traces any more",)),
        ("Where each rank stands", finding.details()),
        ("What to do", (CURES[finding.kind],)),
    ]
    return HangTelling(number, finding.sentence(), sections)


def _circle(finding: MayHang) -> Iterator[str]:
    for step in finding.circle:
        yield (
            f"On rank {step.rank}, {step.later} stands behind {step.earlier}: it begins when all ranks of "
            f"{step.earlier.group} have come to that one"
        )
    yield "Each of them waits for the next, and the last for the first"


def _came(rank: int, last: Sequence[Issue]) -> Iterator[str]:
    if last:
        yield f"The last calls of rank {rank}, in this order"
        yield from (f"{issue} ({issue.which})" for issue in last)
