"""Predicts step times of deep models from shallow ones: records a few layers, at two depths, and extrapolates.

Layers are alike, and so are micro-batches but the first. Once a step has more of both than DeepSpeed looks ahead (its
prefetching and its reuse go by ``stage3_max_live_parameters`` and ``stage3_max_reuse_distance``, 1e9 elements each,
``runtime/zero/config.py``), one more layer, or one more micro-batch, adds the same as the last one. So time, operations
and memory are linear in both, and two numbers of each are recorded: four short runs for one long one. A test compares
this with models that are recorded whole.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from papers.studies.sensitivity import Variation, VariedRecording
from streamrace.scenarios.full_size import config_of
from streamrace.scenarios.job import Job
from streamrace.scenarios.models import FULL_SIZE, FullModel
from streamrace.studies.dry_run import rehearse

HORIZON = 1e9  # elements: how far DeepSpeed looks ahead
_ENDS, _BETWEEN = 2, 6  # horizons: in the first recording, in addition to two layers; and how many more in the second


@dataclass(frozen=True)
class Line:
    """A quantity that is linear in layers and in micro-batches: its values at two numbers of each.

    ``values``: by layers and micro-batches.
    """

    layers: tuple[int, int]
    micro_batches: tuple[int, int]
    values: Mapping[tuple[int, int], float]

    def at(self, layers: int, micro_batches: int) -> float:
        by_layers = [_on_line(self.micro_batches, [self.values[one, s] for s in self.micro_batches], micro_batches)
                     for one in self.layers]  # fmt: skip
        return _on_line(self.layers, by_layers, layers)


def _on_line(places: tuple[int, int], values: list[float], place: int) -> float:
    if places[0] == places[1]:
        return values[0]
    return values[0] + (place - places[0]) * (values[1] - values[0]) / (places[1] - places[0])


@dataclass(frozen=True)
class Shortened:
    """A job recorded short. ``seconds``: of a step, by variation; ``peak``: bytes of a GPU; ``flops``: of a step."""

    seconds: Mapping[Variation, Line]
    peak: Line
    flops: Line


def few_layers(model: FullModel) -> tuple[int, int]:
    """Return the two numbers of layers to record; twice the full number, where fewer would save no time.

    Where computation and communication take equally long, the order of waiting repeats with the horizon: so several
    horizons lie between the two.
    """
    of_layer = replace(model, layers=2).parameters - replace(model, layers=1).parameters
    horizon = math.ceil(HORIZON / of_layer)
    first = _ENDS * horizon + 2
    second = first + _BETWEEN * horizon
    return (first, second) if first + second < model.layers else (model.layers, model.layers)


def shortened(job: Job, folder: Path, *, variations: Sequence[Variation] = (Variation(),)) -> Shortened:
    """Record ``job``, of a model of :data:`streamrace.scenarios.models.FULL_SIZE`, with few layers and micro-batches.

    ``variations``: the variations under which the step is timed. ``folder`` is removed afterwards.

    Raises :class:`streamrace.scenarios.base.ScenarioError`, :class:`streamrace.device.ranks.cluster.RankFailed`.
    """
    model = FULL_SIZE[job.model]
    layers = few_layers(model)
    micro_batches = (1, 2) if job.accumulation > 2 else (job.accumulation, job.accumulation)
    seconds: dict[Variation, dict[tuple[int, int], float]] = {}
    peaks: dict[tuple[int, int], float] = {}
    flops: dict[tuple[int, int], float] = {}
    for layer_count in sorted(set(layers)):
        for accumulation in sorted(set(micro_batches)):
            key = layer_count, accumulation
            mine = folder / f"{layer_count}-{accumulation}"
            shallow = config_of(replace(model, layers=layer_count), job.attention)
            shallow.save_pretrained(mine / "model")
            short = job.model_copy(update={"model": str(mine / "model"), "accumulation": accumulation})
            found = rehearse(short, mine / "run", answers=False, races=False)
            recording = VariedRecording(mine / "run" / "trace")
            peaks[key], flops[key] = found.memory.peak, found.flops
            for variation, took in recording.seconds(variations).items():
                seconds.setdefault(variation, {})[key] = took
            shutil.rmtree(mine)
    return Shortened(
        seconds={one: Line(layers, micro_batches, values) for one, values in seconds.items()},
        peak=Line(layers, micro_batches, peaks),
        flops=Line(layers, micro_batches, flops),
    )
