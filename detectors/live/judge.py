"""Turns the measurements of a step into a finding: the first fault and its cause.

Not every bad value is a fault. Attention masks are -inf on purpose, padding may be NaN and never reach
the loss, a dynamic loss scale overflows gradients now and then and skips the step. So a step is only
called bad by values that training keeps: the loss, a gradient that is applied, a parameter, a partition,
optimizer state, or a checksum that does not match. The first bad point is then looked for among all points.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from streamrace.detectors.live.chains import Mismatch, Sum, SumEvent
from streamrace.detectors.live.finding import BEFORE, Cause, Finding, Kind, ProbePoint, ProbeResult, first_few

# The kinds that training keeps. The others count only if one of these is bad.
_KEPT = {Kind.LOSS, Kind.GRADIENT, Kind.PARAMETER, Kind.PRIMARY, Kind.SECONDARY, Kind.OPTIMIZER}
_PASSED = {Kind.OUTPUT, Kind.TAKEN}
_GRADIENTS = {Kind.GRADIENT, Kind.OUTPUT_GRADIENT}
_SPREAD = 12
_MORE = "Watch with checksums to know which."


@dataclass
class Step:
    """The measurements of one rank in one step.

    ``bad``: the bad probes. ``skipped``: the optimizer left the step out. ``scaled``: the loss is
    scaled, dynamically, so that a skipped step may be no fault. ``labels_high``: by micro-batch, the largest
    label (below 0: every label is ignored). ``largest``: the largest absolute output seen, and where. ``losses``:
    by micro-batch. ``sums``: the checksums. ``extremes``: by parameter, the largest absolute value in use.
    """

    number: int
    bad: list[ProbeResult] = field(default_factory=list)
    mismatches: list[Mismatch] = field(default_factory=list)
    skipped: bool = False
    scaled: bool = False
    labels_high: dict[int, float] = field(default_factory=dict)
    largest: tuple[float, ProbePoint] | None = None
    sharded: bool = False
    losses: dict[int, float] = field(default_factory=dict)
    gradient_norm: float | None = None
    sums: list[Sum] = field(default_factory=list)
    extremes: dict[str, float] = field(default_factory=dict)


class Judge:
    """Judges one rank, step after step. Learns which points are bad in healthy steps."""

    def __init__(self, rank: int, watched: frozenset[Kind]) -> None:
        self._rank = rank
        self._watched = watched
        self._usual: set[ProbePoint] = set()

    def step(self, step: Step) -> Finding | None:
        """Return this rank's finding for the step, from its first bad point; None if the step is healthy."""
        bad = sorted(step.bad, key=lambda probe: probe.order)  # a step begins with probes of phase "step", too
        alarms = [probe for probe in bad if self._alarms(probe, step)]
        mismatch = min(step.mismatches, key=lambda mismatch: mismatch.at.order, default=None)
        if not alarms and mismatch is None:
            self._usual.update(probe.point for probe in bad if probe.point.kind not in _GRADIENTS)
            return None
        first = self._first(bad, alarms) if alarms else None
        # Memory that changed in a whole parameter shows only at the step, and no bad value can be its cause.
        in_whole = (
            mismatch is not None and mismatch.at.event is SumEvent.SETTLED and mismatch.at.partition is Kind.PARAMETER
        )
        if mismatch is not None and (first is None or in_whole or mismatch.at.order <= first.order):
            return self._of_mismatch(mismatch, step, bad, first if in_whole else None)
        assert first is not None
        return self._of_probe(first, step, bad)

    def _alarms(self, probe: ProbeResult, step: Step) -> bool:
        kind = probe.point.kind
        if probe.point.detail == BEFORE and kind is Kind.PARAMETER:
            return False  # only adds detail to other alarms: a frozen parameter may hold a mask
        if probe.beyond:
            return not (kind in _GRADIENTS and step.skipped and step.scaled)
        if kind not in _KEPT:
            return kind is Kind.OUTPUT and not probe.point.module and probe.nan > 0
        if kind is Kind.GRADIENT:
            return not (step.skipped and step.scaled)
        return True

    def _first(self, bad: Sequence[ProbeResult], alarms: Sequence[ProbeResult]) -> ProbeResult:
        """Return the earliest bad point that can have led to the alarm: none that is bad in healthy steps."""
        alarm = alarms[0]
        candidates = [probe for probe in bad if probe.order <= alarm.order and probe.point not in self._usual]
        for index, probe in enumerate(candidates):
            # A mask of -inf is harmless unless the next probe is bad as well.
            mask = probe.point.kind in _PASSED and probe.minus_inf and not (probe.nan or probe.plus_inf or probe.beyond)
            if not mask or (index + 1 < len(candidates) and candidates[index + 1].order <= probe.order + 2):
                return probe
        return alarm

    def _of_probe(self, probe: ProbeResult, step: Step, bad: Sequence[ProbeResult]) -> Finding:
        place = probe
        changed = self._changed(probe, step, bad)
        if changed is None:
            cause, evidence = self._cause(probe, step, bad)
        else:
            cause, evidence, probe = Cause.CORRUPTION, [f"The first that it made bad: {place.point}."], changed
        point = probe.point
        return Finding(
            cause=cause,
            kind=point.kind,
            step=place.step,
            micro_batch=place.micro_batch,
            phase=place.phase,
            order=place.order,
            rank=self._rank,
            ranks=(self._rank,),
            module=point.module,
            parameter=point.parameter,
            detail=point.detail if changed is None else "",
            nan=probe.nan,
            inf=probe.plus_inf + probe.minus_inf,
            numel=probe.numel,
            low=probe.low,
            high=probe.high,
            beyond=probe.beyond,
            evidence=tuple(evidence),
            spread=self._spread(bad, place.order - (changed is not None)),
        )

    def _changed(self, first: ProbeResult, step: Step, bad: Sequence[ProbeResult]) -> ProbeResult | None:
        """Return a parameter of the module with the first bad output, if it is bad and was good in the step before."""
        return self._own_parameter(first, bad) if step.number > 1 else None

    def _own_parameter(self, first: ProbeResult, bad: Sequence[ProbeResult]) -> ProbeResult | None:
        """Return a bad parameter, as the passes used it, of the module whose output is bad."""
        if first.point.kind is not Kind.OUTPUT:
            return None
        used = (probe for probe in bad if probe.point.kind is Kind.PARAMETER and probe.point.detail == BEFORE)
        return next((probe for probe in used if probe.point.module == first.point.module), None)

    def _cause(self, probe: ProbeResult, step: Step, bad: Sequence[ProbeResult]) -> tuple[Cause, list[str]]:
        kind = probe.point.kind
        beyond = ["It is beyond the bound that was asked for."] if probe.beyond else []
        if kind is Kind.INPUT:
            return Cause.DATA, ["The batch itself holds it."]
        if kind is Kind.LOSS:
            if step.labels_high.get(probe.micro_batch, 0) < 0:
                return Cause.DATA, ["Every label of the micro-batch is ignored (below 0): the mean is over nothing."]
            return Cause.LOSS, ["All outputs of modules that were probed before are good.", *beyond]
        if kind in _PASSED:
            evidence = ["No output that was probed before it is bad."]
            if Kind.PARAMETER in self._watched:
                evidence = ["All outputs before it are good."]
                used = self._own_parameter(probe, bad)
                if used is not None:
                    evidence.append(f"Training began with a bad parameter: {used.point.parameter}, {_counted(used)}.")
                elif kind is Kind.OUTPUT and (step.sharded or step.number > 1):
                    when = "are good" if step.sharded else "were good after the step before"
                    evidence.append(f"The parameters of {probe.point.module or 'the model'} {when}.")
            if kind is Kind.TAKEN:
                evidence.append("No module made it: it was computed between modules.")
            if step.largest is not None:
                value, where = step.largest
                evidence.append(f"The largest good value before it: {value:.4g}, {where}.")
            return Cause.FORWARD, evidence + beyond
        if kind in _GRADIENTS:
            good = ["The forward pass of the micro-batch is good."] if Kind.OUTPUT in self._watched else []
            return Cause.GRADIENT, good + beyond
        if kind is Kind.OPTIMIZER:
            return Cause.OPTIMIZER, [*self._no_gradient(), *beyond]
        if kind is Kind.SECONDARY:
            return Cause.SHARDING, ["The parameter that it is copied from was good when it was gathered.", _MORE]
        if kind is Kind.PRIMARY or not step.sharded or probe.phase == "step":
            state = [other for other in bad if other.point.kind is Kind.OPTIMIZER and other.step == probe.step]
            if any(other.point.parameter == probe.point.parameter for other in state):
                return Cause.OPTIMIZER, ["Its optimizer state is bad in the same step."]
            return Cause.STEP, [*self._no_gradient(), *beyond]
        return Cause.SHARDING, ["The partition of this rank is good, and what was gathered is not.", _MORE, *beyond]

    def _no_gradient(self) -> list[str]:
        return ["No gradient of the step was bad."] if Kind.GRADIENT in self._watched else []

    def _of_mismatch(
        self, mismatch: Mismatch, step: Step, bad: Sequence[ProbeResult], first: ProbeResult | None
    ) -> Finding:
        """Return a finding. ``first``: the first bad point, which may have come before the mismatched checksum."""
        at: Sum | ProbeResult = mismatch.at
        parameter, order = mismatch.at.parameter, mismatch.at.order
        kind = Kind.PARAMETER if mismatch.cause in (Cause.GATHER, Cause.SHARDING) else mismatch.at.partition
        of_it = [probe for probe in bad if probe.point.parameter == parameter and probe.order >= order]
        bad_probe = next((probe for probe in of_it if probe.point.kind is kind), None)
        evidence = mismatch.evidence
        if bad_probe is None and kind is not Kind.PARAMETER:
            bad_probe = next((probe for probe in of_it if probe.point.kind is Kind.PARAMETER), None)
            if bad_probe is not None:
                evidence += ("The numbers are those of the parameter that was gathered from it.",)
        if first is not None and first.order < order:
            evidence += (f"The first that it made bad: {first.point}.",)
            at, order = first, first.order - 1
        return Finding(
            cause=mismatch.cause,
            kind=kind,
            step=step.number,
            micro_batch=at.micro_batch,
            phase=at.phase,
            order=at.order,
            rank=self._rank,
            ranks=(self._rank,),
            module=parameter.rpartition(".")[0],
            parameter=parameter,
            part=mismatch.part,
            nan=bad_probe.nan if bad_probe else 0,
            inf=bad_probe.plus_inf + bad_probe.minus_inf if bad_probe else 0,
            numel=bad_probe.numel if bad_probe else 0,
            low=bad_probe.low if bad_probe else math.nan,
            high=bad_probe.high if bad_probe else math.nan,
            version=mismatch.version,
            unknown=bad_probe is None and bool(of_it),
            evidence=evidence,
            spread=self._spread(bad, order),
        )

    def _spread(self, bad: Sequence[ProbeResult], order: int) -> tuple[str, ...]:
        follow = [probe for probe in bad if probe.order > order and probe.point not in self._usual]
        lines = [
            f"{probe.phase} of micro-batch {probe.micro_batch}: {probe.point}: {_counted(probe)}"
            for probe in follow[:_SPREAD]
        ]
        return (*lines, *([f"and {len(follow) - _SPREAD} more"] if len(follow) > _SPREAD else []))


def _counted(probe: ProbeResult) -> str:
    count = probe.nan + probe.plus_inf + probe.minus_inf
    return f"{count} of {probe.numel} bad" if count else f"{probe.low:.4g} to {probe.high:.4g}"


def merge(findings: Iterable[Finding]) -> Finding | None:
    """Return one finding for all ranks: the earliest in the order of execution. ``ranks``: all with a finding."""
    ordered = sorted(findings, key=lambda finding: finding.place)
    if not ordered:
        return None
    ranks = tuple(sorted({rank for finding in ordered for rank in finding.ranks}))
    first = ordered[0]
    evidence = first.evidence
    later = [finding for finding in ordered[1:] if finding.rank != first.rank]
    if later:
        other_ranks = first_few(sorted({finding.rank for finding in later}))
        evidence = (*evidence, f"Seen later, or at the same place, on rank {other_ranks}.")
    return Finding(**{**first.__dict__, "ranks": ranks, "evidence": evidence})
