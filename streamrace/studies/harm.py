"""Finds the pairs of a race that can do harm: an all-gather that reads too early gets another value than intended.

A copy into a secondary partition may write the value that is already stored: DeepSpeed up to 0.13.5 copies at each
release of a parameter, several times a step. A pair whose bytes held the same value before is *benign*. It is *harmful*
otherwise: the memory is new (the secondaries are dropped after each optimizer step), something else was written to it
(zeros), or the values date from before an optimizer step (which changes them at its end).

The result comes from the trace alone, so it does not cover the use of the values by other code.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from streamrace.detectors import Occurrence, Race
from streamrace.trace.records import Access, Collective, Label, Launch, Phase, TraceRecord


class Earlier(NamedTuple):
    """An earlier write to a pair's bytes. ``same``: it wrote the value that the pair's first access writes."""

    op: int
    same: bool


class Pair(NamedTuple):
    """One occurrence of a race. ``name``: the parameter that owns the bytes, empty if unknown.

    ``before``: the writes to these bytes before the first access wrote, the latest first. A second access that reads
    too early reads the latest of these that has ended by then.
    """

    race: int
    occurrence: Occurrence
    name: str
    before: tuple[Earlier, ...]

    @property
    def harmful(self) -> bool:
        """Check whether the other order could change a value."""
        return not self.before or not self.before[0].same

    @property
    def within_forward(self) -> bool:
        """Check whether both accesses belong to one forward pass."""
        return self.occurrence.first[1:4] == self.occurrence.second[1:4] and self.occurrence.first.phase == "forward"


class _Write(NamedTuple):
    op: int
    kernel: str
    step: int  # in which the write was issued; before the first step: 1, as its values are those of step 1
    lo: int
    hi: int


def pairs_of(races: Sequence[Race], records: Iterable[TraceRecord]) -> list[Pair]:
    """Return all occurrences of ``races`` that the trace's ``records`` can time; races must have all their examples.

    A free has no place in time, and is left out.
    """
    examples = [
        (number, example)
        for number, race in enumerate(races)
        for example in race.examples
        if example.first.op is not None and example.second.op is not None
    ]
    blocks = {example.block for _, example in examples}
    writes: dict[int, list[_Write]] = {}
    labels: dict[int, list[Label]] = {}
    step = 1
    for record in records:
        if isinstance(record, (Launch, Collective)):
            for block, lo, hi, _ in _plain(record.writes):
                if block in blocks:
                    writes.setdefault(block, []).append(_Write(record.op, record.kernel, step, lo, hi))
        elif isinstance(record, Phase):
            step = max(step, record.step)
        elif isinstance(record, Label) and record.block in blocks:
            labels.setdefault(record.block, []).append(record)
    pairs = []
    for number, example in examples:
        label = next((label for label in labels.get(example.block, ()) if label.lo <= example.lo < label.hi), None)
        before = tuple(_before(example, writes.get(example.block, [])))
        pairs.append(Pair(number, example, label.name if label else "", before))
    return pairs


def _before(occurrence: Occurrence, writes: Sequence[_Write]) -> Iterator[Earlier]:
    """Yield the writes to these bytes before ``one.first`` wrote, the latest first."""
    overlapping = [write for write in writes if write.lo < occurrence.hi and write.hi > occurrence.lo]
    at = next((place for place, write in enumerate(overlapping) if write.op == occurrence.first.op), None)
    if at is None:  # the first access is a read: any later write that comes too early changes its value
        return
    copy = overlapping[at]
    for write in reversed(overlapping[:at]):
        covers = write.lo <= occurrence.lo and occurrence.hi <= write.hi
        yield Earlier(write.op, covers and (write.kernel, write.step) == (copy.kernel, copy.step))


def _plain(accesses: Iterable[Access]) -> Iterable[Access]:
    """Convert to :class:`Access`: a reader returns plain tuples, shorter where they have no layout."""
    return (Access(*access) for access in accesses)
