"""Extrapolates a job of a deep model: records few layers, shows that the order repeats, and continues it.

Limits that count over the whole model are unchanged, and must take effect no later than in the recordings. DeepSpeed
prefetches and releases by numbers of elements (``stage3_max_live_parameters``, ``stage3_max_reuse_distance``,
``stage3_prefetch_bucket_size``, ``reduce_bucket_size``; deepspeed/runtime/zero/config.py), so even the shallowest
recording has more elements in its layers than each of these, and two layers more. The optimizer processes a partition
in parts of ``sub_group_size``: if the whole model has more than one, the job is refused here and can be run whole.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from streamrace.detectors import Race
from streamrace.detectors.identity import identity
from streamrace.metrics import BusyMetrics, MemoryMetrics, StepTime, TrafficMetrics
from streamrace.scenarios import rehearsal
from streamrace.scenarios.base import ScenarioError
from streamrace.scenarios.job import Job
from streamrace.studies.classes import Comparison
from streamrace.studies.dry_run import Extension, Rehearsed, Tell, rehearse
from streamrace.studies.layers.pattern import Growth, Irregular, LayerPattern, growth
from streamrace.studies.layers.synthesized_trace import SynthesizedTrace
from streamrace.studies.process_pool import ProcessPool, cores
from streamrace.trace.files import TraceReader
from streamrace.trace.records import Begin, begin

FEWEST, MOST = 3, 14
"""Fewest and most layers that are recorded."""
PERIODS = (1, 2, 3, 4)
DEEP = 40
"""Layers from which on a model is not run whole unless requested."""

# DeepSpeed's defaults (runtime/zero/config.py), in elements.
_LIMITS = {
    "stage3_max_live_parameters": 1_000_000_000,
    "stage3_max_reuse_distance": 1_000_000_000,
    "stage3_prefetch_bucket_size": 50_000_000,
    "reduce_bucket_size": 500_000_000,
    "allgather_bucket_size": 500_000_000,
}
_SUB_GROUP = 1_000_000_000


def rehearsed(
    job: Job,
    folder: Path,
    tell: Tell,
    *,
    rank: int = 0,
    exact: bool | None = None,
    compare: bool = True,
    meanwhile: Callable[[Rehearsed], None] = lambda result: None,
) -> Rehearsed:
    """Dry-run ``job`` from a few of its layers if they show that the order repeats, else with all of them.

    ``exact``: run all; None: run all of a model that has less than :data:`DEEP`. ``compare``: compare the other ranks
    (:mod:`streamrace.studies.classes`). ``meanwhile`` is called with the result while the other ranks still run. Raises
    :class:`streamrace.scenarios.base.ScenarioError` if ``exact`` is False and the order does not repeat, and the errors
    of :func:`streamrace.studies.dry_run.rehearse`.
    """
    if exact is None and (rehearsal.layers_of(job) or 0) < DEEP:
        exact = True
    with Comparison(job, folder / "ranks", tell) as ranks:
        result: Rehearsed | None = None
        if not exact:
            try:
                result = extended(job, folder, tell, rank=rank, beside=ranks if compare else None)
            except Irregular as problem:
                if exact is False:
                    sentence = f"a few layers do not predict the whole model: {problem}; leave --extend out"
                    raise ScenarioError(sentence) from None
                tell(f"a few layers do not predict the whole model, so all layers are run: {problem}")
        if result is None:
            with ProcessPool(cores(), behind=True) as pool:

                def tell_on(text: str) -> None:
                    tell(text)
                    pool.look()

                started = partial(ranks.begin, pool) if compare else lambda: None
                result = rehearse(job, folder, tell_on, rank=rank, started=started)
                meanwhile(result)
                pool.finish()
        else:
            meanwhile(result)
        return replace(result, classes=ranks.result(result.sizes)) if compare else result


def extended(
    job: Job,
    folder: Path,
    tell: Tell = lambda text: None,
    *,
    races: bool = True,
    rank: int = 0,
    beside: Comparison | None = None,
) -> Rehearsed:
    """Compute the result of :func:`rehearse` for ``job``, from some of its layers. ``folder`` keeps their traces.

    ``beside``: a comparison of ranks that the same processes run. Raises :class:`Irregular` with a sentence if the
    order does not repeat, or cannot be shown to, and the errors of :func:`rehearse`.
    """
    depth = rehearsal.layers_of(job)
    if depth is None or depth <= FEWEST + 2:
        raise Irregular("the model has no number of layers that can be changed, or too few")
    fewest = _fewest(job, depth)
    with ProcessPool(cores()) as pool:
        if beside is not None:
            beside.begin(pool)
        run = _from_few(job, folder, _Recordings(job, folder, pool, races=races, rank=rank, tell=tell), fewest, depth)
        pool.finish()
        return run


def _from_few(job: Job, folder: Path, recordings: _Recordings, fewest: int, depth: int) -> Rehearsed:
    if fewest + 2 <= min(MOST, depth):
        recordings.make(fewest, fewest + 1, fewest + 2)  # needed by the shortest period
    problem = Irregular("the order does not repeat from layer to layer")
    for layers in range(fewest, min(MOST, depth) + 1):
        recordings.make(layers)
        for period in PERIODS:
            three = [recordings.made.get(layers - back * period) for back in (2, 1, 0)]
            if None in three or layers - 2 * period < fewest or (depth - layers) % period:
                continue
            try:
                return _extended(job, [run for run in three if run is not None], period, depth, folder)
            except Irregular as irregular:
                problem = irregular
    raise problem


class _Recorded:
    """A dry run with few layers and the order read from its trace."""

    def __init__(self, layers: int, rehearsed: Rehearsed) -> None:
        self.layers, self.found = layers, rehearsed
        reader = TraceReader(rehearsed.trace)
        try:
            self.order = LayerPattern(reader.read())
        finally:
            reader.close()


class _Recordings:
    """Dry runs with few layers, by their number of layers, made in parallel."""

    def __init__(self, job: Job, folder: Path, pool: ProcessPool, *, races: bool, rank: int, tell: Tell) -> None:
        self.made: dict[int, _Recorded] = {}
        self._folder, self._pool, self._tell = folder, pool, tell
        self._record = partial(_record, job, folder, races=races, rank=rank)

    def make(self, *layer_counts: int) -> None:
        """Record those of the numbers of layers that are missing; the deepest takes longest, and starts first."""
        todo = [layers for layers in sorted(layer_counts, reverse=True) if layers not in self.made]
        for layers in reversed(todo):
            self._tell(f"recording {layers} layers")
        rehearsals: dict[int, Rehearsed] = {}
        self._pool.begin(self._record, todo, then=rehearsals.__setitem__)
        for _ in self._pool.done():
            for layers in todo:
                if layers in rehearsals and layers not in self.made:
                    self.made[layers] = _Recorded(layers, rehearsals[layers])
            if all(layers in self.made for layers in layer_counts):
                break


def _record(job: Job, folder: Path, layers: int, *, races: bool, rank: int) -> Rehearsed:
    return rehearse(job, folder / f"{layers}-layers", answers=False, races=races, rank=rank, layers=layers)


def _fewest(job: Job, depth: int) -> int:
    """Compute the layers of the shallowest recording. Raises :class:`Irregular` if few layers cannot show the order."""
    if job.sharding:
        return FEWEST
    first, second = (rehearsal.parameters_of(job, layers) for layers in (FEWEST, FEWEST + 1))
    layer = second - first
    zero: dict[str, Any] = job.deepspeed_config(rehearsal.hidden_of(job)).get("zero_optimization", {})
    together = first + (depth - FEWEST) * layer
    parts = math.ceil(together / job.ranks / zero.get("sub_group_size", _SUB_GROUP))
    if parts > 1:
        raise Irregular(f"the optimizer runs over {parts} parts of sub_group_size, but a few layers fill only one")
    if "stage3_model_persistence_threshold" in zero:
        raise Irregular("stage3_model_persistence_threshold counts the parameters of the whole model")
    most: int = max(
        zero.get(name, default) for name, default in _LIMITS.items() if job.stage == 3 or "stage3" not in name
    )
    needed: int = max(FEWEST, math.ceil(most / layer) + 2)
    if needed + 2 > MOST:
        raise Irregular(f"DeepSpeed's limits are reached only from {needed} layers on: too many to record")
    return needed


def _extended(job: Job, three: Sequence[_Recorded], period: int, depth: int, folder: Path) -> Rehearsed:
    grown = growth(*(run.order for run in three))
    last, times = three[-1], (depth - three[-1].layers) // period
    again = _retimed(last.order)
    if again != last.found.steps:
        raise Irregular("the recorded step does not take as long as its order of work predicts")
    profile, timing = job.profile(), job.timing()
    memory, busy, traffic = MemoryMetrics(profile.capacity), BusyMetrics(), TrafficMetrics(timing.nodes_of)
    course = SynthesizedTrace(last.order)
    first: Begin = begin(last.found.rank, job.ranks)
    for metric in (memory, busy, traffic):
        metric.feed([first, *last.order.groups, *last.order.names])
    for phase in grown:
        records = list(course.phase(phase.order.phase, phase.extended(times)))
        for metric in (memory, busy, traffic):
            metric.feed(records)
    for metric in (memory, busy, traffic):
        metric.feed([course.end()])
    steps = busy.result().steps
    final = last.found

    def count(of: Callable[[Rehearsed], int], figure: str) -> int:
        return _grown([of(run.found) for run in three], times, figure)

    return replace(
        final,
        folder=folder,
        parameters=count(lambda result: result.parameters, "the number of parameters"),
        trained=count(lambda result: result.trained, "the number of trained parameters"),
        operations=course.operations,
        judged=None if final.judged is None else _races([run.found.races for run in three], times),
        step=steps[-1],
        steps=steps,
        traffic=traffic.result(),
        memory=memory.result(),
        flops=count(lambda result: result.flops, "the floating point operations of a step"),
        forward_flops=count(lambda result: result.forward_flops, "those of the forward pass"),
        host_s=sum(run.found.host_s for run in three),
        cache=None,
        extension=Extension(tuple(run.layers for run in three), depth, period, units=_units(grown), trace=final.trace),
    )


def _retimed(order: LayerPattern) -> tuple[StepTime, ...]:
    """Return the steps of a recording, timed anew without change."""
    course, busy = SynthesizedTrace(order), BusyMetrics()
    busy.feed(order.names)
    for phase in order.phases:
        busy.feed(course.phase(phase.phase, phase.items))
    busy.feed([course.end()])
    return busy.result().steps


def _races(recordings: Sequence[tuple[Race, ...]], times: int) -> tuple[Race, ...]:
    """Extrapolate the races: the same races, whose occurrences and reversals grow linearly with the layers."""
    by_place = [{identity(race): race for race in races} for races in recordings]
    if len({frozenset(of_trace) for of_trace in by_place}) > 1 or any(
        len(of_trace) != len(races) for of_trace, races in zip(by_place, recordings, strict=True)
    ):
        raise Irregular("models with different numbers of layers have different races")
    grown = []
    for place, race in by_place[-1].items():
        occurrences = _grown([of_trace[place].occurrences for of_trace in by_place], times, "how often a race occurs")
        manifested = _grown([of_trace[place].manifested for of_trace in by_place], times, "how often a race shows")
        grown.append(replace(race, occurrences=occurrences, manifested=manifested))
    return tuple(grown)


def _grown(three: Sequence[int], times: int, figure: str) -> int:
    first, second, last = three
    if last - second != second - first:
        raise Irregular(f"{figure} does not grow by the same with each layer ({first}, {second}, {last})")
    return last + times * (last - second)


def _units(grown: Sequence[Growth]) -> dict[str, list[int]]:
    """Return the number of records that a layer adds, by phase."""
    return {
        f"{phase.order.phase.name} of step {phase.order.phase.step}": [unit.length for unit in phase.units]
        for phase in grown
        if phase.units
    }
