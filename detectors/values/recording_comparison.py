"""Compares two recorded runs (``values.recordings``): finds the first difference, and whether rounding explains it.

**The rule.** A copy does not round: a first difference in a *gathered* parameter whose partitions were recorded and
equal is never explained. A loss or gradient norm is explained within the bound. The optimizer works element by element
and sums nothing, so a first difference *after the step* comes from gradients. These have no checksums, and their last
bits average out below the norm's: it is explained if the norms of the step are known, finite and equal, and the
largest values (where known) within the norm's bound; that is possible, not proven. Finite in one run only: never.

**Not claimed.** Only the first difference is judged: later ones grow chaotically. Sums that cancel may differ by more,
and so may a loss behind many layers: this bounds its last sum. Adam moves a parameter whose exact gradient is 0 by
rounding alone, by any part of its size. Equal norms do not prove equal gradients: memory that goes wrong in the step
itself, without a new largest value, passes for rounding.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

from streamrace.detectors.values.divergence import by_occurrence, number
from streamrace.detectors.values.recordings import RecordingError, StepRecord, UseRecord, WatchRecording
from streamrace.detectors.values.rounding import UNKNOWN, rounding_bound


@dataclass(frozen=True)
class RecordedDivergence:
    """The first difference of a run to its reference. ``what`` is "parameter", "loss", "gradient norm", or "".

    ``value`` and ``reference``: for a parameter, the largest absolute values. ``parts``: which of its parts differ.
    ``ranks``: all that have this difference first. ``growth``, by step: the largest relative difference of a loss and
    of the gradient norm (NaN: finite in one run only), and how many uses differ. ``compared``: values that both have;
    ``unmatched``: values that only one has, in a step of both. ``bounds``: the relative differences of a loss and of a
    gradient norm that reordered sums explain.
    """

    growth: tuple[tuple[int, float, float, int], ...]
    compared: int
    unmatched: int
    bounds: tuple[float, float]
    step: int = -1
    phase: str = ""
    micro_batch: int = -1
    rank: int = -1
    what: str = ""
    parameter: str = ""
    parts: tuple[int, ...] = ()
    value: float = math.nan
    reference: float = math.nan
    ranks: tuple[int, ...] = ()
    explained: bool = False
    why: str = ""

    @property
    def diverged(self) -> bool:
        return bool(self.what or self.unmatched)

    def sentence(self) -> str:
        """Return a sentence for the user that describes the difference."""
        steps = f"steps {self.growth[0][0]} to {self.growth[-1][0]}"
        if not self.diverged:
            return f"No difference: all {self.compared} values of {steps} are equal, bit for bit."
        if not self.what:
            return f"Of {steps}, {self.unmatched} values are in only one of the recordings; {self.compared} are equal."
        verdict = "Within what reordered sums explain" if self.explained else "Reordered sums do not explain it"
        name = f"parameter {self.parameter}" if self.parameter else f"the {self.what}"
        ranks = f"rank {', '.join(map(str, self.ranks[:8]))}{' and more' if len(self.ranks) > 8 else ''}"
        place = f"step {self.step}, micro-batch {self.micro_batch}, {self.phase}, {ranks}"
        return f"The runs differ first in {place}: {name}. {verdict}: {self.why}."

    def as_dict(self) -> dict[str, Any]:
        """Return JSON-ready data; values that are not finite become text, as JSON has no number for them."""
        data = {**asdict(self), "diverged": self.diverged}
        data["growth"] = [[step, number(loss), number(norm), uses] for step, loss, norm, uses in self.growth]
        data["bounds"] = [number(bound) for bound in self.bounds]
        return {**data, "value": number(self.value), "reference": number(self.reference)}


class _Difference(NamedTuple):
    """A difference. ``order`` is (step, stage, micro-batch, place in it, position, rank), and sorts by execution."""

    order: tuple[int, int, int, int, int, int]
    phase: str
    micro_batch: int
    what: str
    parameter: str
    parts: tuple[int, ...]
    value: float
    reference: float


_OPENING, _PASSES, _END = range(3)  # stages of a step
_FORWARD, _LOSS, _BACKWARD = range(3)  # places in a micro-batch
_Pairs = dict[int, tuple[StepRecord, StepRecord]]  # by step: the reference's and the run's


def compare(reference: WatchRecording, run: WatchRecording) -> RecordedDivergence:
    """Return the first difference of ``run``, in common steps. Raises :class:`RecordingError` if the two do not fit."""
    steps = _common_steps(reference, run)
    growth = {step: [0.0, 0.0, 0.0] for step in sorted({step for pairs in steps.values() for step in pairs})}
    firsts: dict[int, _Difference] = {}  # by rank
    compared = unmatched = 0
    for rank, pairs in steps.items():
        for step, (expected, record) in pairs.items():
            differences, shared, unmatched_here = _compare_step(rank, expected, record, growth[step])
            compared, unmatched = compared + shared, unmatched + unmatched_here
            if differences:
                firsts.setdefault(rank, min(differences))
    precision, terms = str(run.info[0].get("precision")), (run.info[0].get(key) or UNKNOWN[key] for key in UNKNOWN)
    loss, norm = (rounding_bound(count, precision) for count in terms)
    curve = tuple((step, row[0], row[1], int(row[2])) for step, row in growth.items())
    result = RecordedDivergence(curve, compared, unmatched, (loss, norm))
    if not firsts:
        return result
    first = min(firsts.values())
    ranks = [rank for rank, diff in firsts.items() if (diff.order[:4], diff[1:5]) == (first.order[:4], first[1:5])]
    explained, why = _judged(first, steps, result.bounds)
    facts = {key: value for key, value in first._asdict().items() if key != "order"}
    facts |= {"step": first.order[0], "rank": first.order[-1], "ranks": tuple(ranks)}
    return replace(result, **facts, explained=explained, why=why)


def _common_steps(reference: WatchRecording, run: WatchRecording) -> dict[int, _Pairs]:
    """Return the steps of both, by rank. Raises :class:`RecordingError` for recordings of different trainings."""
    facts: list[tuple[str, Any, Any]] = [("the number of ranks", reference.world, run.world)]
    facts += [(key, reference.info[0].get(key), run.info[0].get(key)) for key in ("precision", "parameters")]
    steps: dict[int, _Pairs] = {}
    for rank in range(min(reference.world, run.world)):
        known = {record.step: record for record in reference.steps[rank]}
        steps[rank] = {record.step: (known[record.step], record) for record in run.steps[rank] if record.step in known}
    start = min((step for pairs in steps.values() for step in pairs), default=0)
    first_steps = [pairs[start] for pairs in steps.values() if start in pairs]
    base_names, run_names = ({use.parameter for pair in first_steps for use in pair[side].uses} for side in (0, 1))
    # Only of the first step: later, runs that have diverged may use other experts.
    facts += [(f"parameter {name}", name in base_names, name in run_names) for name in sorted(base_names ^ run_names)]
    for fact, expected, value in facts:
        if expected != value:
            raise RecordingError(f"cannot compare: {fact} is {value} in the run, {expected} in the reference")
    if not first_steps:
        raise RecordingError("cannot compare: no step is in both: record the same steps of both runs")
    return steps


def _compare_step(
    rank: int, expected: StepRecord, record: StepRecord, growth: list[float]
) -> tuple[list[_Difference], int, int]:
    """Return all differences; how many values both have, and how many only one has. Updates ``growth``."""
    differences: list[_Difference] = []
    bases, uses = by_occurrence(expected.uses, 3), by_occurrence(record.uses, 3)
    opening = _opening(expected.uses)
    for position, (key, base) in enumerate(bases.items()):
        use = uses.get(key, base)
        if len(use.sums) != len(base.sums):
            raise RecordingError(f"cannot compare: {use.parameter} has {len(use.sums)} parts, not {len(base.sums)}")
        parts = tuple(part for part, pair in enumerate(zip(use.sums, base.sums, strict=True)) if pair[0] != pair[1])
        if parts:
            place = (_OPENING, 0, 0) if position in opening else (_END, 0, 1)
            if use.phase != "step":
                place = (_PASSES, use.micro_batch, _FORWARD if use.phase == "forward" else _BACKWARD)
            at = (use.phase, use.micro_batch, "parameter", use.parameter, parts)
            differences.append(_Difference((record.step, *place, position, rank), *at, use.largest, base.largest))
            growth[2] += 1
    losses = [*zip(record.losses, expected.losses, strict=False)]
    norms = [step.gradient_norm for step in (record, expected) if step.gradient_norm is not None]
    numbers = [((_PASSES, index, _LOSS), "forward", "loss", *pair) for index, pair in enumerate(losses, 1)]
    if len(norms) == 2:
        numbers.append(((_END, 0, 0), "step", "gradient norm", norms[0], norms[1]))
    for place, phase, quantity, value, reference in numbers:
        change = _relative(value, reference)
        curve = int(quantity != "loss")
        growth[curve] = math.nan if math.isnan(change + growth[curve]) else max(change, growth[curve])
        if change != 0:
            at = (phase, place[1] or max(len(losses), 1), quantity, "", ())
            differences.append(_Difference((record.step, *place, 0, rank), *at, value, reference))
    unmatched = len(bases.keys() ^ uses.keys()) + abs(len(expected.losses) - len(record.losses)) + (len(norms) == 1)
    return differences, len(bases.keys() & uses.keys()) + len(numbers), unmatched


def _opening(uses: Sequence[UseRecord]) -> set[int]:
    """Return the indices of partitions recorded before the passes, not after the optimizer step: initial or edited."""
    passes = next((index for index, use in enumerate(uses) if use.phase != "step"), 0)
    last = {use.parameter: index for index, use in enumerate(uses)}
    return {i for i, use in enumerate(uses) if use.phase == "step" and (i < passes or last[use.parameter] != i)}


def _relative(value: float, reference: float) -> float:
    """Return 0 for equal values; NaN if only one is finite, or neither is and they differ."""
    if value == reference or (math.isnan(value) and math.isnan(reference)):
        return 0.0
    if not (math.isfinite(value) and math.isfinite(reference)):
        return math.nan
    return abs(value - reference) / max(abs(value), abs(reference))


def _partitions_known(pairs: _Pairs, step: int) -> bool:
    """Check whether this rank's partitions were recorded, and so compared, between the step before and the passes."""
    previous = pairs[step - 1][0].uses if step - 1 in pairs else ()
    return any(use.phase == "step" for use in previous) or bool(step in pairs and _opening(pairs[step][0].uses))


def _judged(first: _Difference, steps: Mapping[int, _Pairs], bounds: tuple[float, float]) -> tuple[bool, str]:
    """Return whether the rule explains the first difference, and the end of a sentence with the reason."""
    step, stage, _, _, position, rank = first.order
    change = _relative(first.value, first.reference)
    if math.isnan(change):
        return False, "only one of the values is finite, or both are not and differ"
    if first.what != "parameter":
        bound = bounds[first.what != "loss"]
        values = f"{first.value:.9g} instead of {first.reference:.9g} is a relative difference of {change:.2g}"
        return change <= bound, f"{values}; sums in another order explain up to {bound:.2g}"
    if stage == _PASSES:
        earlier = steps[rank][step][0].uses[:position]
        gathered = any(use.parameter == first.parameter and use.phase != "step" for use in earlier)
        if gathered or all(_partitions_known(pairs, step) for pairs in steps.values()):
            return False, "it was equal before, and a copy does not round"
    updated = steps[rank].get(step if stage == _END else step - 1)
    if updated is None:
        return False, "the step before is not in both recordings, so the runs may not start from the same values"
    if stage == _OPENING:
        return False, "it was edited before the step, and differently"
    norms = [record.gradient_norm for record in updated]
    if norms[0] is None or norms[1] is None or not math.isfinite(norms[0]):
        return False, "no finite gradient norm is recorded that would show that the gradients were equal"
    if change > bounds[1]:
        return False, f"its largest value differs by {change:.2g} (relative); gradients explain up to {bounds[1]:.2g}"
    return True, "the gradient norms are equal, and single gradients may still differ by their last bits"
