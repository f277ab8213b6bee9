"""Trains under PaRO's strategies (arXiv 2310.06003), live, and compares our sharded engine with its specification.

A small model trains on the simulated GPU, once under each strategy. Its losses are compared with those of torch's DDP
on plain gloo; its memory and bytes, counted in the traces, with the formulas
(:mod:`streamrace.scenarios.sharding.formulas`).
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from papers.programs import ddp
from papers.programs.ddp import Losses
from streamrace.detectors import RaceDetector
from streamrace.metrics import BusyMetrics, MemoryMetrics, TrafficMetrics
from streamrace.scenarios import program
from streamrace.scenarios.messages import Report, StepDone
from streamrace.scenarios.models import build
from streamrace.scenarios.registry import named
from streamrace.scenarios.scenario import Scenario
from streamrace.scenarios.sharding.formulas import Size, exchanges, padded_memory, sent
from streamrace.scenarios.sharding.layout import padded
from streamrace.scenarios.sharding.schemes import Cluster, Scheme
from streamrace.scenarios.sharding.strategy import Strategy, legal, strategy
from streamrace.scenarios.sharding.units import units_of
from streamrace.studies.process_pool import OnProgress, quiet
from streamrace.trace.files import TraceReader, file_of

KINDS = ("parameters", "gradients", "state")
FIGURES = (*KINDS, "within", "between")
"""Bytes: kept on a GPU, and sent by it in a step. A column each, and one more with ``_formula``."""


def strategies(names: Sequence[str]) -> tuple[Strategy, ...]:
    """Parse letters or names, each once; all 14 without any. Raises :class:`ShardingError`."""
    return tuple(dict.fromkeys(strategy(name) for name in names)) or legal()


def scenarios(
    chosen: Sequence[Strategy], *, precision: str = "fp32", steps: int = 3, without: Sequence[str] = (), **more: Any
) -> list[Scenario]:
    """Return the named scenario 'paro' under each strategy.

    Without clipping: the sum of all ranks' norms is no part of the formulas. ``without``: synchronisations to remove.
    ``more``: further options of a scenario. Raises :class:`streamrace.scenarios.base.ScenarioError`.
    """
    options = {"precision": precision, "steps": steps, "without": tuple(without), "clip": 0.0, **more}
    return [named("paro", {**options, "sharding": str(one)}) for one in chosen]


def live(todo: Sequence[Scenario], folder: Path, progress: OnProgress = quiet) -> pd.DataFrame:
    """Return one row for each scenario, all of one model, data and precision.

    Columns: ``strategy`` (letters), ``title``; ``loss_difference``: the largest of all ranks and micro-batches from the
    reference's, ``begins_equal``: there is no difference in the first step, before the first update; :data:`FIGURES`,
    in bytes, of the first rank that differs from the formula, if any, and the formula's; ``step_ns``: virtual time of
    the last step, of the slowest rank; ``races``: their number, ``manifested``: the number that this timing reverses.

    ``folder`` receives the ranks' output; traces are removed afterwards. Raises
    :class:`streamrace.device.ranks.cluster.RankFailed`.
    """
    first = todo[0]
    progress(0, len(todo), f"reference: {reference_title(first)}")
    reference = _reference(first, folder / "reference")
    rows = []
    for number, one in enumerate(todo, 1):
        progress(number, len(todo), f"simulated GPU: {one.sharding}, {one.ranks} ranks, {one.steps} steps")
        rows.append(_row(one, _run(one, folder / one.sharding), reference))
    return pd.DataFrame(rows)


def reference_title(one: Scenario) -> str:
    """Return the name of the baseline of the losses."""
    if one.precision == "fp32":
        return "torch's DistributedDataParallel on CPU with gloo"
    return f"our engine under NNN on CPU with gloo, as DDP does not train in {one.precision} with fp32 state"


def differs(row: Any) -> tuple[str, ...]:
    """Return the names of a row's figures that differ from their formulas; ``loss`` among them."""
    wrong = [name for name in FIGURES if getattr(row, name) != getattr(row, f"{name}_formula")]
    return (*wrong, *(() if row.begins_equal else ("loss",)))


def wrong(frame: pd.DataFrame) -> pd.Series[bool]:
    """Mark the rows with a wrong figure, or with a race."""
    return pd.Series([bool(differs(row) or row.races) for row in frame.itertuples()], index=frame.index)


class Expected(NamedTuple):
    """The formulas' bytes for a scenario."""

    parameters: int
    gradients: int
    state: int
    within: float
    between: float


def expected(one: Scenario) -> Expected:
    """Compute the formulas for one GPU; sent bytes are of a step. Units are padded for all ranks, as in the engine."""
    cluster = Cluster(one.ranks, one.sharding_group, one.ranks // one.nodes)
    chosen = Scheme(strategy(one.sharding))
    model = build(one.model, one.size, vocab_size=one.vocabulary, seed=one.seed, frozen=one.frozen)
    pieces = [
        (sum(value.numel() for _, value in unit.parameters if value.requires_grad is trained), trained)
        for unit in units_of(model)
        for trained in (True, False)
    ]
    whole = [numel for numel, _ in pieces if numel]
    mine = [numel for numel, trained in pieces if numel and trained]
    kept = padded_memory(chosen, whole, cluster, trained=mine, precision=one.precision)
    size = Size(sum(padded(numel, one.ranks) for numel in whole), sum(padded(numel, one.ranks) for numel in mine))
    went = sent(exchanges(chosen, size, cluster, accumulation=one.accumulation, precision=one.precision), cluster)
    return Expected(kept.parameters, kept.gradients, kept.state, went.within, went.between)


# -- running ------------------------------------------------------------------------------------------------------


@dataclass
class _Found:
    """The results of a run, from its ranks' reports and traces."""

    losses: Losses = field(default_factory=dict)
    figures: list[tuple[int, ...]] = field(default_factory=list)  # as FIGURES
    steps: list[int] = field(default_factory=list)
    races: int = 0
    manifested: int = 0


def _reference(one: Scenario, folder: Path) -> Losses:
    if one.precision == "fp32":
        return ddp.run(one, folder=folder)
    found = _Found()
    plain = one.model_copy(update={"sharding": "NNN", "without": ()})
    program.run(plain, simulated=False, folder=folder, receive=_receiving(found))
    return found.losses


def _run(one: Scenario, folder: Path) -> _Found:
    found, detector = _Found(), RaceDetector()
    nodes_of = one.timing().nodes_of
    program.run(one, simulated=True, folder=folder, receive=_receiving(found))
    for rank in range(one.ranks):
        memory, traffic, busy = MemoryMetrics(), TrafficMetrics(nodes_of), BusyMetrics()
        reader = TraceReader(file_of(folder / "trace", rank))
        records = list(reader.read())
        reader.close()
        detector.feed(rank, records)
        for metric in (memory, traffic, busy):
            metric.feed(records)
        kinds, went = memory.result().kind_peaks, traffic.result().only(step=one.steps)
        state = kinds.get("master", 0) + kinds.get("optimizer", 0)
        kept = (kinds.get("primary", 0), kinds.get("gradient", 0), state)
        found.figures.append((*kept, went.within, went.between))
        found.steps.append(busy.result().steps[-1].time)
    detector.finish()
    found.races, found.manifested = len(detector.races), sum(race.manifested > 0 for race in detector.races)
    shutil.rmtree(folder)
    return found


def _receiving(found: _Found) -> program.Receive:
    def receive(rank: int, report: Report) -> None:
        if isinstance(report, StepDone):
            found.losses.update({(rank, step, at): loss for step, at, loss in report.losses})

    return receive


def _row(one: Scenario, found: _Found, reference: Losses) -> dict[str, Any]:
    apart = {key: abs(loss - reference[key]) for key, loss in found.losses.items()}
    row: dict[str, Any] = {
        "strategy": str(strategy(one.sharding)),
        "title": strategy(one.sharding).title,
        "loss_difference": max(apart.values()),
        "begins_equal": found.losses.keys() == reference.keys()
        and all(not value for (_, step, _), value in apart.items() if step == 1),
    }
    for at, (name, formula) in enumerate(expected(one)._asdict().items()):
        counted = [figures[at] for figures in found.figures]
        row[name] = next((value for value in counted if value != formula), counted[0])
        row[f"{name}_formula"] = formula
    return {**row, "step_ns": max(found.steps), "races": found.races, "manifested": found.manifested}
