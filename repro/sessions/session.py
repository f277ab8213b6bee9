"""Runs a scenario and its reference, and feeds the detectors while it runs."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import asdict
from functools import partial
from pathlib import Path

from streamrace.detectors import (
    Finding,
    Hang,
    Race,
    RaceDetector,
    Uncovered,
    Unexercised,
    Unseen,
    Values,
    compare,
    find_stale,
)
from streamrace.detectors.base import found_by
from streamrace.detectors.confidence.waits import Waits
from streamrace.detectors.files import Reader, rests_on
from streamrace.device.ranks.cluster import RankFailed
from streamrace.frameworks.deepspeed.releases import PINNED
from streamrace.metrics import EndMetrics
from streamrace.process.interrupts import held
from streamrace.reports.data import sources, tables
from streamrace.reports.data.findings import Cost, Findings, Verdict, of_scenario
from streamrace.reports.screen.terminal import Progress
from streamrace.repro.sessions import witnesses
from streamrace.repro.sessions.detector_set import detectors
from streamrace.repro.sessions.release import versions
from streamrace.scenarios import program
from streamrace.scenarios.messages import Report, StepDone, TrainingBegan, TrainingEnded, WatchFound
from streamrace.scenarios.scenario import Scenario
from streamrace.trace.files import TraceReader, file_of


class Interrupted(Exception):
    """Ctrl-C, or a failed rank: the findings so far are written, and in ``findings``."""

    def __init__(self, findings: Findings, cause: RankFailed | None) -> None:
        super().__init__(str(cause or "interrupted"))
        self.findings = findings
        self.cause = cause


def reference_of(scenario: Scenario, folder: Path, progress: Progress) -> Values:
    """Return the expected values: of the same program on the CPU with gloo, without the simulated accelerator.

    Without hpZ, where hpZ itself may compute wrong values (another release, an edit between steps): a correct hpZ
    changes no value.
    """
    values = Values()
    parts = scenario.hpz if scenario.hpz > 1 else scenario.ranks
    if scenario.deepspeed != PINNED or scenario.edit_after:
        scenario = scenario.model_copy(update={"hpz": 1})

    def receive(rank: int, report: Report) -> None:
        _take(values, rank, report)
        if isinstance(report, StepDone):
            for step, _, loss in report.losses:
                progress.row(step).reference.append(loss)
            progress.update()

    engine = "our own engine" if scenario.sharding else "stock DeepSpeed"
    progress.doing(f"reference: {engine} on CPU with gloo")
    program.run(scenario, simulated=False, folder=folder / "reference", receive=receive, parts=parts)
    return values


def simulate(
    scenario: Scenario, folder: Path, reference: Values, progress: Progress, *, rests: bool = True
) -> Findings:
    """Run on the simulated GPU; write the findings into ``folder``.

    ``rests``: for a clean run, also find what its verdict rests on: waits that order by chance, and features that were
    on and never happened.

    Raises :class:`Interrupted`.
    """
    values, waits, using = Values(), Waits(), detectors()
    reading: list[Reader] = [waits, *using]
    readers: dict[int, TraceReader] = {}
    clocks: dict[int, dict[int, tuple[int, int]]] = defaultdict(dict)
    ends: dict[int, EndMetrics] = defaultdict(EndMetrics)
    done: dict[int, int] = {}
    expected = {
        rank: {(loss.step, loss.micro_batch): loss.value for loss in losses}
        for rank, losses in reference.losses.items()
    }

    def follow(rank: int) -> None:
        with held():  # these records are not read again
            records = list(readers[rank].read())
            for reader in reading:
                reader.feed(rank, records)
            ends[rank].feed(records)

    def receive(rank: int, report: Report) -> None:
        _take(values, rank, report)
        if isinstance(report, WatchFound):
            watch_findings.append(Finding.from_dict(report.finding))
        if rank not in readers:
            readers[rank] = TraceReader(file_of(folder / "trace", rank))
        follow(rank)
        if isinstance(report, TrainingBegan):
            clocks[rank][0] = (report.clock, report.blocked)
            if len(readers) == scenario.ranks:
                progress.doing("simulated GPU: training")
        if isinstance(report, StepDone):
            done[rank] = report.step
            clocks[rank].setdefault(report.step, (report.clock, report.blocked))
            for step, micro_batch, loss in report.losses:
                row = progress.row(step)
                row.losses.append(loss)
                row.wrong |= loss != expected.get(rank, {}).get((step, micro_batch))
            complete = min(done.values()) if len(done) == scenario.ranks else 0
            begun = min(step for by_step in clocks.values() for step in by_step if step)  # a resumed run begins later
            for step in range(begun, complete + 1):
                row = progress.row(step)
                row.races = row.races or sum(detector.count for detector in using if isinstance(detector, RaceDetector))
            full = scenario.ranks * scenario.accumulation
            progress.update(step for step in range(begun, complete + 1) if len(progress.row(step).losses) == full)

    watch_findings: list[Finding] = []  # from the NaN watch: the same on each rank

    def conclude(failure: str | None) -> Findings:
        for rank in readers:
            follow(rank)
        for detector in using:
            detector.finish()
        races = found_by(using, Race)
        build = partial(
            of_scenario,
            scenario=scenario.model_dump(mode="json"),
            versions=versions(),
            profile=asdict(scenario.profile()),
            races=races,
            stale=find_stale(values, reference, racing={name.name for race in races for name in race.names}),
            uncovered=found_by(using, Uncovered),
            divergence=compare(reference, values),
            cost=_cost(clocks, {rank: metrics.result() for rank, metrics in ends.items()}, scenario.steps),
            steps_done=min(done.values(), default=0),
            failure=failure,
            watch=watch_findings[0] if watch_findings else None,
            witnesses=witnesses.of(scenario, folder / "trace", races) if failure is None else (),
            distance=_distance(values),
            hangs=found_by(using, Hang),
        )
        tables.write(values, reference, folder)
        findings = build()
        _write(findings, folder)
        if rests and findings.verdict is Verdict.CLEAN and not failure:
            progress.doing("judging which waits the verdict depends on")
            missing = [*found_by(using, Unexercised), *found_by(using, Unseen)]
            findings = build(holding=rests_on(folder / "trace", waits), unexercised=missing)
            _write(findings, folder)
        return findings

    progress.doing(f"simulated GPU: starting {scenario.ranks} ranks")
    try:
        program.run(scenario, simulated=True, folder=folder, receive=receive)
    except RankFailed as error:
        with held():  # a closing terminal signals twice, and all processes
            findings = conclude(str(error))
        raise Interrupted(findings, error) from error
    except KeyboardInterrupt:
        with held():
            findings = conclude("interrupted")
        raise Interrupted(findings, None) from None
    return conclude(None)


def _write(findings: Findings, folder: Path) -> None:
    sources.write([*findings.races, *(race for group in findings.held for race in group.races)], folder)
    findings.write(folder)  # last: the findings mark the run as complete


def _take(values: Values, rank: int, report: Report) -> None:
    if isinstance(report, StepDone):
        values.add(rank, report.losses, report.parameters, report.norms)
    elif isinstance(report, TrainingEnded):
        values.final[rank] = report.final


def _distance(values: Values) -> float:
    """Return the largest distance; NaN if any is."""
    distances = [use.distance for uses in values.uses.values() for use in uses]
    return math.nan if any(map(math.isnan, distances)) else max(distances, default=0.0)


def _cost(clocks: dict[int, dict[int, tuple[int, int]]], ends: dict[int, dict[int, int]], steps: int) -> Cost | None:
    """Compute averages over the ranks, without the first step if there are more.

    ``clocks``: the host's clock after each step, and its blocked time so far; ``ends``: the end of the step's work. A
    step ends at the later of the two: a host that never waits goes through all steps before the first has run.
    """
    rows = []
    for rank, hosts in clocks.items():
        by_step = {
            step: (max(clock, ends.get(rank, {}).get(step, 0)), blocked) for step, (clock, blocked) in hosts.items()
        }
        done = sorted(step for step in by_step if step)  # a resumed run does not begin with step 1
        first = done[0] if len(done) > 1 else 0
        if steps in by_step and first in by_step:
            clock, blocked = (now - then for now, then in zip(by_step[steps], by_step[first], strict=True))
            count = steps - first if first else len(done)
            rows.append((clock / count, blocked / count))
    if not rows:
        return None
    return Cost(sum(row[0] for row in rows) / len(rows), sum(row[1] for row in rows) / len(rows))
