"""Finds the scale at which hpZ's memory costs more than it gains: throughput at the largest micro-batch that fits.

The reviewers of arXiv 2407.01614 ask for it. The secondary copy takes 2 bytes x parameters / group of each GPU, however
many GPUs there are, so ZeRO-3 without it has room for a larger micro-batch, which hides as much communication. Dry runs
of stock DeepSpeed: for each model, number of GPUs and card the largest micro-batch that fits is found for ZeRO-3 and
for hpZ, and the step is timed on each network.

Whether a job fits is decided by torch's peak of allocated memory, as in :mod:`streamrace.studies.memory`. The part that
depends on the number of GPUs is exact (model states divided by the ranks), so it is measured at one number of GPUs. The
part that depends on the micro-batch is nearly linear: the predicted micro-batch is recorded, and reduced until it fits.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from papers.studies.depth_extrapolation import Shortened, shortened
from papers.studies.sensitivity import Variation
from streamrace.scenarios.job import Job, job
from streamrace.scenarios.models import FULL_SIZE
from streamrace.studies.memory import CARDS, GIB
from streamrace.studies.process_pool import OnProgress, quiet, side_by_side
from streamrace.studies.sweep import PAYS

MODELS = ("llama-2-7b", "llama-2-70b")
RANKS = (16, 64, 256)
NETWORKS = (12.5, 25.0, 50.0, 100.0, 200.0, 400.0)
GPUS = GROUP = 8
JOB: dict[str, Any] = {"gpus": GPUS, "checkpointing": True, "hardware": "a100-100gbps", "steps": 2}
MOST = 256  # sequences of a micro-batch: nobody trains with more
COLUMNS = ("model", "ranks", "card", "hpz", "micro_batch", "peak_gib", "network", "step_s", "tokens_per_second")
"""Columns of the frame: see :func:`study`."""
_MEASURED = 64, (2, 8)  # GPUs, and micro-batches, at which memory is measured first
_STATES = 16.0  # bytes a parameter: weights, gradients, fp32 copy and Adam's moments, cut into as many parts as ranks


class BatchCase(NamedTuple):
    """A model and its sharding. ``hpz``: size of the group; 1 is ZeRO-3 without hpZ."""

    model: str
    hpz: int


class Timed(NamedTuple):
    """The largest micro-batch that fits, timed; 0: not even one sequence fits."""

    micro_batch: int
    peak: float
    seconds: dict[float, float]


def study(
    folder: Path,
    *,
    models: Sequence[str] = MODELS,
    ranks: Sequence[int] = RANKS,
    cards: Sequence[int] = CARDS,
    networks: Sequence[float] = NETWORKS,
    workers: int | None = None,
    progress: OnProgress = quiet,
    **options: Any,
) -> pd.DataFrame:
    """Return one row for each model, number of GPUs, card (GiB), sharding and network. ``options``: of the job.

    Columns: the case's; ``hpz``, the group (1: ZeRO-3); ``micro_batch``, the largest that fits (0: none does, and the
    following are NaN), ``peak_gib`` of it; ``network``, Gbit/s of a node; ``step_s``; ``tokens_per_second`` of all
    GPUs.

    :func:`streamrace.scenarios.rehearsal.preload` must have been called. Raises
    :class:`streamrace.scenarios.base.ScenarioError`.
    """
    todo = [BatchCase(model, hpz) for model in models for hpz in (1, GROUP)]
    work = partial(
        _largest, folder=folder, ranks=tuple(ranks), cards=tuple(cards), networks=tuple(networks), options=options
    )
    rows: dict[BatchCase, list[dict[str, Any]]] = {}
    for case, found in side_by_side(work, todo, workers=workers):
        rows[case] = found
        progress(len(rows), len(todo), f"{case.model}, {'ZeRO-3' if case.hpz == 1 else f'hpZ {case.hpz}'}")
    return pd.DataFrame([row for case in todo for row in rows[case]], columns=list(COLUMNS))


def gains(frame: pd.DataFrame) -> pd.DataFrame:
    """Compare hpZ with ZeRO-3. Columns: ``model``, ``card``, ``network``, ``ranks``; ``zero3_batch``, ``hpz_batch``;
    ``gain``: throughput of hpZ over ZeRO-3's; 0 where only hpZ does not fit, NaN where neither does.
    """
    keys = ["model", "card", "network", "ranks"]
    zero3, hpz = (frame[frame.hpz == 1] if one else frame[frame.hpz > 1] for one in (True, False))
    both = zero3.merge(hpz, on=keys, suffixes=("_zero3", "_hpz"))
    gain = (both.tokens_per_second_hpz / both.tokens_per_second_zero3).where(both.micro_batch_hpz > 0, 0.0)
    found = both[keys].assign(
        zero3_batch=both.micro_batch_zero3,
        hpz_batch=both.micro_batch_hpz,
        gain=gain.where(both.micro_batch_zero3 > 0),
    )
    return found.sort_values(keys, ignore_index=True)


def crossings(gained: pd.DataFrame) -> pd.DataFrame:
    """Find, by model, card and network, from how many GPUs on hpZ pays (:data:`PAYS`) at its largest micro-batch.

    Columns: ``model``, ``card``, ``network``; ``fits_from``, GPUs from which on ZeRO-3 fits at all; ``pays_from``, GPUs
    from which on hpZ pays; ``most_lost``: the least gain where hpZ fits. NaN: at no tried number of GPUs.
    """
    rows = []
    for (model, card, network), found in gained.groupby(["model", "card", "network"], sort=False):
        found = found.sort_values("ranks")
        slower = found[~(found.gain >= PAYS)]
        faster = found[found.ranks > (slower.ranks.max() if len(slower) else 0)]
        fitting = found[found.hpz_batch > 0]
        rows.append(
            {
                "model": model,
                "card": card,
                "network": network,
                "fits_from": found[found.zero3_batch > 0].ranks.min(),
                "pays_from": faster.ranks.min(),
                "most_lost": fitting.gain.min(),
            }
        )
    return pd.DataFrame(rows)


def _largest(
    case: BatchCase,
    *,
    folder: Path,
    ranks: tuple[int, ...],
    cards: tuple[int, ...],
    networks: tuple[float, ...],
    options: dict[str, Any],
) -> list[dict[str, Any]]:
    """Compute all rows of a model with or without hpZ; they share the first measurements."""
    mine = folder / f"{case.model}-{case.hpz}"
    variations = [Variation(network=one) for one in networks]
    first_ranks, (few, more) = _MEASURED
    parameters = FULL_SIZE[case.model].parameters

    def made(count: int, micro_batch: int) -> Job:
        nodes = {"nodes": count // GPUS, "micro_batch": micro_batch}
        return job(**{**JOB, **options, **nodes, "model": case.model, "hpz": case.hpz})

    known: dict[tuple[int, int], Shortened] = {}

    def recorded(count: int, micro_batch: int) -> Shortened:
        key = count, micro_batch
        if key not in known:
            known[key] = shortened(made(*key), mine / f"{count}-{micro_batch}", variations=variations)
        return known[key]

    layers = FULL_SIZE[case.model].layers
    low, high = (recorded(first_ranks, one).peak.at(layers, 1) for one in (few, more))
    slope = (high - low) / (more - few)

    def search(count: int, card: int) -> Timed:
        states = _STATES * parameters * (1 / count - 1 / first_ranks)
        guess = min(MOST, int((card * GIB - high - states) / slope) + more)
        while guess > 0:
            found = recorded(count, guess)
            peak = found.peak.at(layers, 1)
            if peak <= card * GIB:
                seconds = {one: found.seconds[Variation(network=one)].at(layers, 1) for one in networks}
                return Timed(guess, peak, seconds)
            guess = min(guess - 1, guess - int((peak - card * GIB) / slope))
        return Timed(0, float("nan"), dict.fromkeys(networks, float("nan")))

    rows = []
    for count in ranks:
        for card in cards:
            found = search(count, card)
            for network in networks:
                tokens = count * found.micro_batch * made(count, 1).sequence
                rows.append(
                    {
                        "model": case.model,
                        "ranks": count,
                        "card": card,
                        "hpz": case.hpz,
                        "micro_batch": found.micro_batch,
                        "peak_gib": found.peak / GIB,
                        "network": network,
                        "step_s": found.seconds[network],
                        "tokens_per_second": tokens / found.seconds[network],
                    }
                )
    shutil.rmtree(mine, ignore_errors=True)
    return rows
