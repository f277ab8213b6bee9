"""Extends PaRO's paper: HO-Ring against its figure, a slow node, nodes of different sizes, larger models.

* **HO-Ring.** The paper saves 25 to 40 % of a 1 GB all-gather's time. The saving depends on how many of a node's
  cards the flat ring used: :func:`rings` gives the rate at which ours would save as much.
* **A slow node** holds up all: every ring between nodes passes it. So the step is that of a cluster all of whose nodes
  are as slow, and the strategies that send less between nodes gain.
* **Nodes of different sizes** (4 and 8 GPUs) our engine refuses, as it needs equal groups and nodes
  (:class:`streamrace.scenarios.sharding.schemes.Cluster`). In closed form groups of 4 make three groups of them,
  two of which share a node: each ring of one index leaves each node once, as over three nodes of 4.
* **Larger models**: which strategies' states fit, and how long a step takes, in closed form.

Closed forms have one flow for a ring over all ranks.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import pandas as pd

from papers.programs.ring_run import gather
from papers.studies.paro_paper import (
    ACCUMULATION,
    GPUS,
    HARDWARE,
    MICRO_BATCH,
    ONE_FLOW,
    SEQUENCE,
    STEPS,
    PaperCase,
    slowed,
)
from papers.studies.paro_timed import RecordedSteps, StepTimes, on_flow
from papers.studies.published_figures import published
from streamrace.device.hardware import HardwareTiming, load_profile
from streamrace.replay.recording import Recording
from streamrace.scenarios.models import FULL_SIZE
from streamrace.scenarios.sharding.formulas import Size, communication, computation, exchanges, memory, profile_rates
from streamrace.scenarios.sharding.schemes import Cluster, RingPlace, Scheme, schemes
from streamrace.scenarios.sharding.strategy import ShardingError, strategy
from streamrace.studies.process_pool import OnProgress, quiet, side_by_side

GATHERED = 1_000_000_000  # bytes
RINGS = ("flat", "HO-Ring")
SLOW = (0.5, 0.25)
"""One node's part of the network that the other nodes have."""
LARGE = ("llama-65b", "llama-2-70b", "gpt-175b")
SIZES = (4, 8)  # GPUs of two nodes
_CARD = 80e9  # bytes of a GPU's memory


def rings(
    folder: Path, *, ranks: Sequence[int] = STEPS, workers: int | None = None, progress: OnProgress = quiet
) -> pd.DataFrame:
    """Time all-gathers of 1 GB, dry: ``flat_s``, ``ho_ring_s``; ``less``, ours, and ``theirs``, ``low`` and ``high``.

    ``error``: of the saved part, relative. ``needs_gbit``: the rate of each node that the flat ring would need for ours
    to save as much; ``needs_flows``: the same in flows of one card. A flat ring has one flow.

    Raises :class:`streamrace.device.ranks.cluster.RankFailed`.
    """
    row = published("paro", quantity="less")[0]
    found: dict[tuple[str, int], int] = {}
    todo = [(what, count) for what in RINGS for count in ranks]
    for key, ns in side_by_side(partial(_ring, folder=folder), todo, workers=workers):
        found[key] = ns
        progress(len(found), len(todo), f"{key[0]}, {key[1]} GPUs")
    made = []
    for count in ranks:
        flat, ho = (found[what, count] / 1e9 for what in RINGS)
        less = 1 - ho / flat
        needs = 8 * GATHERED * (count - 1) / count / (ho / (1 - row.value)) / 1e9
        made.append(
            {
                "ranks": count,
                "flat_s": flat,
                "ho_ring_s": ho,
                "theirs": row.value,
                "low": row.low,
                "high": row.high,
                "less": less,
                "error": less / row.value - 1,
                "needs_gbit": needs,
                "needs_flows": needs / ONE_FLOW,
            }
        )
    return pd.DataFrame(made)


def _ring(item: tuple[str, int], *, folder: Path) -> int:
    what, ranks = item
    mine, profile = folder / f"ring-{what}-{ranks}", load_profile(HARDWARE)
    timing = HardwareTiming(profile, tuple(rank // GPUS for rank in range(ranks)))
    gather(what, timing, group=GPUS, nbytes=GATHERED, folder=mine)
    took = RecordedSteps(Recording.load(mine / "trace", calls=False), 1).at(profile, 1)
    shutil.rmtree(mine)
    return took


def slow_node(found: Mapping[PaperCase, StepTimes[float]], *, ranks: int = 32) -> pd.DataFrame:
    """Return a step of 7B, all trained, with equal networks, and where one node has half of the others', or a quarter.

    ``share``: 1, and :data:`SLOW`; ``step_s``; ``slower``: how many times as long as with 1; ``gain``: how many times
    as fast as ZeRO-3 on the same; ``closed``: the gain in closed form, nothing hidden. Only strategies that were timed
    are included.
    """
    size = Size(*[FULL_SIZE["llama-2-7b"].parameters] * 2)
    made = []
    zero3 = PaperCase("llama-2-7b", "all", ranks, "GGG")
    for letters in ("GGG", "NGG", "NIG", "NII", "IIG"):
        case = zero3._replace(strategy=letters)
        if case not in found or zero3 not in found:
            continue
        for share in (1.0, *SLOW):
            key = ONE_FLOW if share == 1 else share
            mine, other = found[case].steps[key], found[zero3].steps[key]
            made.append(
                {
                    "strategy": letters,
                    "share": share,
                    "step_s": mine / 1e9,
                    "slower": mine / found[case].steps[ONE_FLOW],
                    "gain": other / mine,
                    "closed": _closed("GGG", size, ranks, share) / _closed(letters, size, ranks, share),
                }
            )
    return pd.DataFrame(made)


def _closed(letters: str, size: Size, ranks: int, share: float = 1.0) -> float:
    """Return the seconds of a step, communication and computation one after the other."""
    profile, cluster = slowed(on_flow(load_profile(HARDWARE), ONE_FLOW), share), Cluster(ranks, GPUS, GPUS)
    found = exchanges(Scheme(strategy(letters)), size, cluster, accumulation=ACCUMULATION)
    return communication(found, cluster, profile_rates(cluster, profile)) + _computing(size)


def _computing(size: Size) -> float:
    profile = load_profile(HARDWARE)
    flops = profile.tflops * 1e12 * profile.efficiency
    return computation(size, tokens=ACCUMULATION * MICRO_BATCH * SEQUENCE, flops=flops)


def sizes_differ() -> pd.DataFrame:
    """Compare 7B on nodes of 4 and 8 GPUs with as many on nodes of 4, in closed form: groups of 4, nothing hidden.

    ``refused``: the engine's error. ``step_s``, ``gain`` against ZeRO-3; ``even_s``: three nodes of 4, each with a
    network of its own, where in the uneven cluster two groups share a network: the time is the same, as a ring of one
    index leaves each node once.
    """
    group, profile = min(SIZES), on_flow(load_profile(HARDWARE), ONE_FLOW)
    ranks = sum(SIZES)
    try:
        Cluster(ranks, group, max(SIZES))
        refused = ""
    except ShardingError as error:
        refused = str(error)
    even = Cluster(ranks, group, group)
    rates = {
        RingPlace.WITHIN: profile.intra_node_gbits_per_s,
        RingPlace.BETWEEN: profile.flow_gbits_per_s(group),  # as many rings as a group has ranks, over each node's
        RingPlace.ACROSS: profile.flow_gbits_per_s(1),
    }
    size = Size(*[FULL_SIZE["llama-2-7b"].parameters] * 2)
    times = {
        letters: [
            communication(exchanges(Scheme(strategy(letters)), size, even, accumulation=ACCUMULATION), even, one)
            + _computing(size)
            for one in (rates, profile_rates(even, profile))
        ]
        for letters in ("GGG", "NGG", "NIG", "NII", "IIG")
    }
    return pd.DataFrame(
        [
            {
                "strategy": letters,
                "sizes": "+".join(map(str, SIZES)),
                "step_s": uneven,
                "gain": times["GGG"][0] / uneven,
                "even_s": alike,
                "refused": refused,
            }
            for letters, (uneven, alike) in times.items()
        ]
    )


def large(models: Sequence[str] = LARGE, ranks: Sequence[int] = STEPS[1:]) -> pd.DataFrame:
    """Compute larger models in closed form, nothing hidden: ``states_gb`` by scheme, ``fits`` 80 GB, ``step_s``.

    Model states only: no activations. ``fastest``: of the schemes that fit.
    """
    made = []
    profile = on_flow(load_profile(HARDWARE), ONE_FLOW)
    for model in models:
        size = Size(*[FULL_SIZE[model].parameters] * 2)
        for count in ranks:
            cluster = Cluster(count, GPUS, GPUS)
            rates = profile_rates(cluster, profile)
            for one in schemes():
                states = memory(one, size, cluster).total
                sending = communication(exchanges(one, size, cluster, accumulation=ACCUMULATION), cluster, rates)
                made.append(
                    {
                        "model": model,
                        "ranks": count,
                        "scheme": str(one),
                        "states_gb": states / 1e9,
                        "fits": states <= _CARD,
                        "step_s": sending + _computing(size),
                    }
                )
    frame = pd.DataFrame(made)
    best = frame[frame.fits].groupby(["model", "ranks"]).step_s.transform("min")
    frame["fastest"] = False
    frame.loc[best.index, "fastest"] = frame.step_s[best.index] == best
    return frame
