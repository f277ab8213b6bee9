"""Compares PaRO's strategies by memory and cost: which are on the Pareto front, and how far above the lower bound.

The reviewers of arXiv 2310.06003 ask for a lower bound of the trade of memory against communication. The bound is
computed by :mod:`papers.studies.trade`; this module compares all ways to shard with it, for the cases of the paper:
Llama 7B and 65B, all, 1/16 or 0.1 % trained, on 32 GPUs of its cluster, 10 micro-batches a step.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import pandas as pd

from papers.studies.paro_paper import ACCUMULATION, GPUS, HARDWARE, MICRO_BATCH, SEQUENCE, TRAINED, sizes
from papers.studies.trade import TradedStep, least_crossing, least_seconds, least_sent
from streamrace.device.hardware import load_profile
from streamrace.scenarios.sharding.formulas import (
    STATE_BYTES,
    communication,
    computation,
    exchanges,
    memory,
    profile_rates,
    sent,
)
from streamrace.scenarios.sharding.schemes import Cluster, Scheme, schemes

MODELS = ("llama-2-7b", "llama-65b")
RANKS = 32
COSTS = ("sent", "crossing", "communication_s", "step_s")
"""The costs compared with memory: bytes that a GPU sends in a step, bytes that leave a node, seconds."""
BOUNDED = ("sent", "crossing", "communication_s")
COLUMNS = (
    "model", "trained", "ranks", "strategy", "title", "memory", *COSTS, *(f"least_{name}" for name in BOUNDED),
    *(f"front_{name}" for name in COSTS),
)  # fmt: skip
_SAME = 1e-9  # relative: sums of the same terms in another order differ in the last bit


class TradeCase(NamedTuple):
    """A model and its trained part. ``trained``: one of :data:`papers.studies.paro_paper.TRAINED`."""

    model: str
    trained: str = "all"
    ranks: int = RANKS


def cases(models: Sequence[str] = MODELS, trained: Sequence[str] = TRAINED) -> list[TradeCase]:
    """Return each model with each part trained."""
    return [TradeCase(model, part) for model in models for part in trained]


def study(todo: Sequence[TradeCase]) -> pd.DataFrame:
    """Return one row for each case and way to shard, hpZ among them; sorted by memory.

    Columns: the case's; ``strategy``, ``title``; ``memory``, bytes of a GPU; :data:`COSTS` in bytes and seconds;
    ``least_``: the bound of that cost with this memory; ``front_``: no other way of this case has at most this memory
    and this cost, and less of one of the two.
    """
    frames = []
    for case in todo:
        frame = pd.DataFrame([_row(case, one) for one in schemes()])
        for name in COSTS:
            frame[f"front_{name}"] = front(list(frame["memory"]), list(frame[name]))
        frames.append(frame.sort_values(["memory", "sent"], kind="stable"))
    return pd.concat(frames, ignore_index=True)[list(COLUMNS)]


def front(memories: Sequence[float], costs: Sequence[float]) -> list[bool]:
    """Return, for each pair, whether no other dominates it. Equal pairs do not dominate each other."""
    pairs = list(zip(memories, costs, strict=True))

    def dominated(one: tuple[float, float]) -> bool:
        return any(
            all(there <= here * (1 + _SAME) for there, here in zip(other, one, strict=True))
            and any(there < here * (1 - _SAME) for there, here in zip(other, one, strict=True))
            for other in pairs
        )

    return [not dominated(one) for one in pairs]


def traded(case: TradeCase) -> TradedStep:
    """Return the traded step of a case."""
    return TradedStep(sizes(case.model, case.trained), Cluster(case.ranks, GPUS, GPUS), ACCUMULATION)


def _row(case: TradeCase, one: Scheme) -> dict[str, Any]:
    step, profile = traded(case), load_profile(HARDWARE)
    size, cluster = step.size, step.cluster
    takes = memory(one, size, cluster).total
    found = exchanges(one, size, cluster, accumulation=step.accumulation)
    bytes_sent = sent(found, cluster)
    seconds = communication(found, cluster, profile_rates(cluster, profile))
    flops = profile.tflops * 1e12 * profile.efficiency
    computing = computation(size, tokens=ACCUMULATION * MICRO_BATCH * SEQUENCE, flops=flops)
    return {
        **case._asdict(),
        "strategy": str(one),
        "title": one.title,
        "memory": takes,
        "sent": bytes_sent.within + bytes_sent.between,
        "crossing": bytes_sent.of_node(GPUS).crossing,
        "communication_s": seconds,
        "step_s": max(seconds, computing),
        "least_sent": least_sent(step, takes),
        "least_crossing": least_crossing(step, takes),
        "least_communication_s": least_seconds(step, takes, profile),
    }


def bound(case: TradeCase, points: int = 200) -> pd.DataFrame:
    """Return the bounds of a case, from the least memory to DDP's. Columns: ``memory``, ``least_`` of each cost."""
    step, profile = traded(case), load_profile(HARDWARE)
    # Memory in geometric steps; and the corners, where more memory begins to be worth less.
    most = step.whole + step.mine + STATE_BYTES * step.size.trained
    memories = {step.least_memory * (most / step.least_memory) ** (at / (points - 1)) for at in range(points)}
    every, group = step.cluster.ranks, step.cluster.group
    memories |= {
        step.least_memory + step.whole * (1 - 1 / every),
        step.least_memory + (step.whole + step.mine) * (1 - 1 / every),
        step.least_memory + step.whole * (1 / group - 1 / every),
        step.least_memory + (step.whole + step.mine) * (1 / group - 1 / every),
    }
    rows = [
        {
            "memory": one,
            "least_sent": least_sent(step, one),
            "least_crossing": least_crossing(step, one),
            "least_communication_s": least_seconds(step, one, profile),
        }
        for one in sorted(memories)
    ]
    return pd.DataFrame(rows)
