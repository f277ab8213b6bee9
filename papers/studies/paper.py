"""Compares the reports of papers and threads with dry runs: step times, speed-ups, losses.

Nothing is fitted. Next to the prediction from the hardware's facts is one where *one* figure of a cluster is taken from
the other rows of that cluster (:mod:`papers.studies.unknowns`), never from the predicted row itself.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from papers.studies.depth_extrapolation import Shortened, few_layers, shortened
from papers.studies.live import losses_of
from papers.studies.pairs import PARAMETER, TwoFigures, best_two, two_figures
from papers.studies.published_figures import Published, clusters, published, settings
from papers.studies.sensitivity import Variation
from papers.studies.unknowns import EXPLAINED, UNKNOWNS, Curve, best, calibrating, explanations
from streamrace.scenarios.job import Job, job
from streamrace.scenarios.models import FULL_SIZE, FullModel
from streamrace.scenarios.scenario import scenario
from streamrace.studies.process_pool import OnProgress, quiet, side_by_side

CLAIM = published("constrained", quantity="most")[0].value  # 98 % more throughput than without hpZ
MODELS = tuple(one.model for one in published("constrained", quantity="most"))
MICRO_BATCHES = (1, 4, 16)
ACCUMULATIONS = (1, 2, 3, 4, 8)
OFF = 0.25  # relative error of a step's time that has to be explained


# -- all rows -----------------------------------------------------------------------------------------------------


class RecordedRow(NamedTuple):
    """The key of a recording; rows of models that differ only in their depth share it."""

    cluster: str
    shape: FullModel  # with one number of layers for all depths of a width
    setting: str


def recorded_of(row: Published) -> RecordedRow:
    model = FULL_SIZE[row.model]
    layers = few_layers(model)
    same = model if layers[0] == model.layers else replace(model, name="", layers=layers[1])
    return RecordedRow(row.cluster, same, row.setting)


def job_of(row: Published, folder: Path | None = None) -> Job:
    """Return the job of a row that reports a time. ``folder`` receives the setting's DeepSpeed configuration, if any.

    Raises :class:`streamrace.scenarios.base.ScenarioError`.
    """
    place, setting = clusters()[row.cluster], settings()[row.setting]
    made = job(model=row.model, nodes=place.nodes, gpus=place.gpus, hardware=place.hardware, **setting.options)
    if not setting.zero or folder is None:
        return made
    config = made.deepspeed_config(None)
    config |= {"train_micro_batch_size_per_gpu": "auto", "gradient_accumulation_steps": "auto"}
    config["zero_optimization"] |= setting.zero
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "deepspeed.json"
    file.write_text(json.dumps(config), encoding="utf-8")
    return made.model_copy(update={"config": str(file)})


@dataclass(frozen=True)
class TimedRow:
    """A row with its time, theirs and ours, in seconds of a step; and ours by the value of each unknown."""

    row: Published
    theirs: float
    low: float
    high: float
    ours: float
    curves: Mapping[str, Curve]

    @property
    def error(self) -> float:
        return self.ours / self.theirs - 1

    @property
    def in_range(self) -> bool:
        """Check whether ours is within the reported range (never, where none is reported)."""
        return self.low <= self.ours <= self.high


def timed_rows(
    chosen: Sequence[Published], folder: Path, *, workers: int | None = None, progress: OnProgress = quiet
) -> list[TimedRow]:
    """Time the rows that report a time. Raises :class:`ScenarioError`, and as :func:`shortened`."""
    wanted: dict[RecordedRow, list[Published]] = {}
    for row in chosen:
        if row.is_time:
            wanted.setdefault(recorded_of(row), []).append(row)
    items = [(rows[0], tuple(sorted({row.network for row in rows}))) for rows in wanted.values()]
    items.sort(key=lambda item: -sum(few_layers(FULL_SIZE[item[0].model])) * job_of(item[0]).accumulation)
    found: dict[RecordedRow, Shortened] = {}
    for (row, _), one in side_by_side(partial(_short, folder=folder), items, workers=workers):
        found[recorded_of(row)] = one
        progress(len(found), len(items), f"{row.model}, {settings()[row.setting].title}")
    return [_timed(row, found[recorded_of(row)]) for row in chosen if row.is_time]


def _variations(network: float) -> dict[str, list[Variation]]:
    return {one.key: [one.vary(value, network) for value in one.values] for one in UNKNOWNS}


def _short(item: tuple[Published, tuple[float, ...]], *, folder: Path) -> Shortened:
    row, networks = item
    wanted = [Variation(network=network) for network in networks]
    wanted += [
        each._replace(parameter_ps=0.0)
        for network in networks
        for those in _variations(network).values()
        for each in those
    ]
    mine = folder / f"{row.cluster}-{row.model}-{row.setting}"
    return shortened(job_of(row, mine), mine, variations=tuple(dict.fromkeys(wanted)))


def _timed(row: Published, found: Shortened) -> TimedRow:
    layers, made = FULL_SIZE[row.model].layers, job_of(row)

    def ours(variation: Variation) -> float:
        beside = variation.parameter_ps * 1e-12 * FULL_SIZE[row.model].parameters * made.accumulation
        return found.seconds[variation._replace(parameter_ps=0.0)].at(layers, made.accumulation) + beside

    samples = made.ranks * made.micro_batch * made.accumulation
    flops = found.flops.at(layers, made.accumulation)
    theirs, low, high = (row.seconds(value, flops=flops, samples=samples) for value in (row.value, row.low, row.high))
    curves = {one.key: Curve(one, tuple(ours(each) for each in _variations(row.network)[one.key])) for one in UNKNOWNS}
    return TimedRow(row, theirs, low, high, ours(Variation(network=row.network)), curves)


def rows(timed: Sequence[TimedRow]) -> pd.DataFrame:
    """Return a row each: theirs and ours in seconds of a step, with errors, and their explanations.

    ``error``: from the facts alone; ``calibrated_s``, ``calibrated_error``: with ``value`` (NaN: no other rows), the
    other rows' value of the unknown ``by``, which predicts the cluster best in this way. ``explained_by``: the unknown
    that explains an error of more than 10 % (:func:`papers.studies.unknowns.best`), ``needs``: the needed value,
    ``fits_others``: the error of the row at the value that the others need. Where no unknown explains alone, two may
    (:mod:`papers.studies.pairs`): ``also`` is the second unknown, ``needs_also`` its value. ``theirs`` and ``ours``: in
    the row's own quantity.
    """
    found = []
    for name in dict.fromkeys(one.row.cluster for one in timed):
        of = [one for one in timed if one.row.cluster == name]
        theirs = [one.theirs for one in of]
        told = explanations([one.curves for one in of], theirs)
        errors = calibrating(told, theirs)
        able = [one.key for one in UNKNOWNS if not math.isnan(errors[one.key])]
        chosen = min(able, key=lambda unknown: errors[unknown]) if able else ""
        pairs = two_figures([one.curves for one in of], theirs)
        for at, (one, options) in enumerate(zip(of, told, strict=True)):
            found.append(_row(one, options, errors, chosen, best_two(pairs, theirs, at)))
    return pd.DataFrame(found)


def _row(
    one: TimedRow, options: Any, errors: Mapping[str, float], chosen: str, pair: TwoFigures | None
) -> dict[str, Any]:
    row, off = one.row, abs(one.error) > EXPLAINED
    by = next((each for each in options if each.unknown.key == chosen), None)
    why = best(options, errors, one.theirs) if off else None
    two = pair if off and why is None else None
    told = why or two
    scale = one.theirs * row.value if row.quantity != "seconds" else math.nan  # quantity times seconds
    made: dict[str, Any] = {
        "cluster": clusters()[row.cluster].title,
        "model": row.model,
        "network": row.network,
        "setting": settings()[row.setting].title,
        "quantity": row.quantity,
        "theirs": row.value,
        "ours": one.ours if math.isnan(scale) else scale / one.ours,
        "theirs_s": one.theirs,
        "ours_s": one.ours,
        "error": one.error,
        "in_range": one.in_range,
        "by": by.unknown.title if by else "",
        "value": by.of_others if by else math.nan,
        "calibrated_s": by.seconds if by else math.nan,
        "calibrated_error": by.seconds / one.theirs - 1 if by else math.nan,
        "explained_by": why.unknown.title if why else two.first.title if two else "",
        "needs": why.value if why else two.value if two else math.nan,
        "also": PARAMETER.title if two else "",
        "needs_also": two.parameter_ps if two else math.nan,
        "fits_others": told.seconds / one.theirs - 1 if told else math.nan,
    }
    for each in options:
        made[f"needs_{each.unknown.key}"] = each.value
    return made


def candidates(timed: Sequence[TimedRow]) -> pd.DataFrame:
    """Return, by cluster and unknown, the values that its rows would need, and how well one value does for all of them.

    ``rows``: of the cluster; ``explained``: how many some value explains, to a tenth; ``plausible``: of those, how many
    a plausible value does; ``least``, ``median``, ``most``: needed; ``error``: the mean absolute one, each row
    predicted with the others' value; ``facts_error``: with the facts alone. ``low`` to ``high``: plausible.
    """
    found = []
    for name in dict.fromkeys(one.row.cluster for one in timed):
        of = [one for one in timed if one.row.cluster == name]
        theirs = [one.theirs for one in of]
        told = explanations([one.curves for one in of], theirs)
        errors = calibrating(told, theirs)
        for at, unknown in enumerate(UNKNOWNS):
            needed = pd.Series([options[at].value for options in told], dtype=float)
            found.append(
                {
                    "cluster": clusters()[name].title,
                    "unknown": unknown.title,
                    "rows": len(of),
                    "explained": int(needed.notna().sum()),
                    "plausible": sum(options[at].plausible for options in told),
                    "least": needed.min(),
                    "median": needed.median(),
                    "most": needed.max(),
                    "low": unknown.low,
                    "high": unknown.high,
                    "error": errors[unknown.key],
                    "facts_error": sum(abs(one.error) for one in of) / len(of),
                }
            )
    return pd.DataFrame(found)


# -- what hpZ gains, of which 98 % are claimed --------------------------------------------------------------------


def gains(
    folder: Path,
    *,
    models: Sequence[str] = MODELS,
    micro_batches: Sequence[int] = MICRO_BATCHES,
    accumulations: Sequence[int] = ACCUMULATIONS,
    workers: int | None = None,
    progress: OnProgress = quiet,
) -> pd.DataFrame:
    """Compare hpZ 8 with ZeRO-3 on 2 nodes x 8 A100, 12.5 Gbit/s, gradient checkpointing, eager attention.

    Attention is eager: the threads' transformers 4.35 computes the scores one by one (flash attention came later).
    ``gain``: how many times as fast hpZ is; ``derived``: 3s/(s+1), where only communication counts. ``claimed_at``: the
    accumulation at which 98 % would be gained (a real number; NaN: never), the same for all rows of a model and
    micro-batch. ``peak_gib``, ``zero3_peak_gib``: of a GPU; ``fits``: whether hpZ's fits.

    Raises :class:`streamrace.scenarios.base.ScenarioError`, and as
    :func:`papers.studies.depth_extrapolation.shortened`.
    """
    place = clusters()["constrained"]
    items = [
        job(model=model, nodes=place.nodes, gpus=place.gpus, hardware=place.hardware, hpz=hpz, micro_batch=micro_batch,
            accumulation=max(accumulations), checkpointing=True, attention="eager")
        for model in models for micro_batch in micro_batches for hpz in (place.gpus, 1)
    ]  # fmt: skip
    items.sort(key=lambda one: -sum(few_layers(FULL_SIZE[one.model])))
    found: dict[tuple[str, int, bool], Shortened] = {}
    for one, short in side_by_side(partial(_gain, folder=folder), items, workers=workers):
        found[one.model, one.micro_batch, one.hpz > 1] = short
        progress(len(found), len(items), f"{one.model}, micro-batch {one.micro_batch}, hpZ {one.hpz}")
    made = []
    for model in models:
        layers = FULL_SIZE[model].layers
        for micro_batch in micro_batches:
            hpz, zero3 = (found[model, micro_batch, on] for on in (True, False))
            times = [(hpz.seconds[Variation()].at(layers, s), zero3.seconds[Variation()].at(layers, s)) for s in (1, 2)]
            for s in accumulations:
                mine, other = (one.seconds[Variation()].at(layers, s) for one in (hpz, zero3))
                peaks = [one.peak.at(layers, s) / 2**30 for one in (hpz, zero3)]
                made.append(
                    {
                        "model": model,
                        "micro_batch": micro_batch,
                        "accumulation": s,
                        "hpz_step_s": mine,
                        "zero3_step_s": other,
                        "gain": other / mine,
                        "derived": 3 * s / (s + 1),
                        "claimed_at": gained_at(times, CLAIM),
                        "peak_gib": peaks[0],
                        "zero3_peak_gib": peaks[1],
                        "fits": peaks[0] <= items[0].profile().memory_gbytes,
                        "zero3_fits": peaks[1] <= items[0].profile().memory_gbytes,
                    }
                )
    return pd.DataFrame(made)


def gained_at(times: Sequence[tuple[float, float]], gain: float) -> float:
    """Return the accumulation that reaches ``gain``. ``times``: hpZ's and ZeRO-3's with accumulation 1 and 2, seconds.

    Both are linear in it, so the result solves (c + d s) = gain (a + b s). NaN: never reached; 1: already at 1.
    """
    (first, other_first), (second, other_second) = times
    slope, other_slope = second - first, other_second - other_first
    if other_first / first >= gain:
        return 1.0
    grows = other_slope - gain * slope
    return math.nan if grows <= 0 else 1 + (gain * first - other_first) / grows


def _gain(item: Job, *, folder: Path) -> Shortened:
    name = f"{item.model}-{item.micro_batch}-{item.hpz}"
    return shortened(item, folder / name)


# -- losses -------------------------------------------------------------------------------------------------------


def losses(folder: Path, *, steps: int = 4) -> pd.DataFrame:
    """Return the loss of each step with hpZ and without: a small model, live on the simulated GPU, rank 0's mean."""
    columns = {}
    for name, hpz in (("zero3", 1), ("hpz", 2)):
        found = losses_of(scenario(hpz=hpz, steps=steps, size="tiny", accumulation=2), folder / name)
        columns[name] = {step: sum(values) / len(values) for step, values in found.items()}
    frame = pd.DataFrame(columns)
    frame["equal"] = frame.zero3 == frame.hpz
    return frame.rename_axis("step").reset_index()
