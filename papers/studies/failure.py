"""Computes the cost of a failure: recovery time and lost throughput, by checkpoint interval, strategy and scale.

The reviewers of arXiv 2310.06003 ask for it. A checkpoint is the bf16 weights and the fp32 state, 14 bytes a parameter,
stored once however many groups have a copy; storage bandwidth grows with the GPUs. The rate of failures and the time of
a restart are published for other runs (``facts.toml``, section failure); the costs are computed by
:mod:`papers.studies.outages`.

* **ZeRO-3** reads the checkpoint back: each part is in one place.
* **hpZ** does the same. Its secondary copy is in no checkpoint and need not be: DeepSpeed drops it with each
  optimizer step, and the next forward pass creates it again. Nor does it help: it has no optimizer state.
* **PaRO** with the state in each group (I, or N) loses with a host what other groups still have: the replacing host
  reads it from a peer over the network, and nothing is rolled back. Failures that affect many hosts (software, network)
  still roll back. That takes memory: a group has to hold all states, so groups are as small as fits.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import pandas as pd

from papers.studies import FACTS
from papers.studies.outages import Outages, played
from streamrace.device.hardware import Profile, load_profile
from streamrace.device.hardware.facts import fact
from streamrace.scenarios.models import FULL_SIZE
from streamrace.scenarios.sharding.formulas import Size, computation, memory
from streamrace.scenarios.sharding.schemes import Cluster, Scheme, scheme

HARDWARE = "dgx-a100-roce"
GPUS = 8
STRATEGIES = ("GGG", "hpZ", "IIG", "III")
RATES = ("llama3", "opt", "bloom")  # of interruptions, by the training run that reports it
HOURS = (0.25, 0.5, 1.0, 3.0, 6.0)  # between checkpoints, besides the best
FREE = 0.8  # of a GPU's memory for model states, at most; the rest is for activations and gathered parameters
_EVENTS = 4000
COLUMNS = (
    "model", "ranks", "strategy", "group", "state_gb", "peer", "rate", "between_h", "checkpoint_s", "rollback_s",
    "repair_s", "young_s", "best_s", "lost_best", *(f"lost_{hours:g}h" for hours in HOURS), "recovery_s",
)  # fmt: skip
"""Columns of the frame: see :func:`study`."""


class FailureCase(NamedTuple):
    """A training run. ``parameters``: of the model; ``batch``: tokens of a step, whose work may be lost."""

    model: str
    parameters: float
    ranks: int
    batch: float


# Batches: Llama 2's (arXiv 2307.09288, table 1) and Llama 3's (arXiv 2407.21783, section 3.4.1).
CASES = (
    FailureCase("llama-2-7b", FULL_SIZE["llama-2-7b"].parameters, 64, 4e6),
    FailureCase("llama-2-70b", FULL_SIZE["llama-2-70b"].parameters, 1024, 4e6),
    FailureCase("llama-3.1-405b", FULL_SIZE["llama-3.1-405b"].parameters, 16384, 16e6),
)


def study(
    cases: Sequence[FailureCase] = CASES, strategies: Sequence[str] = STRATEGIES, rates: Sequence[str] = RATES
) -> pd.DataFrame:
    """Return one row for each case, strategy and published failure rate, without strategies that fit in no group.

    Columns: the case's and the ``strategy``; ``group``, its ranks: the fewest nodes in which the states fit,
    ``state_gb``, model states of a GPU; ``peer``: another group has a lost host's state; ``rate``: its source,
    ``between_h``: hours between interruptions; ``checkpoint_s`` to write a checkpoint, ``rollback_s`` and ``repair_s``:
    downtimes (the latter NaN without a peer); ``young_s`` and ``best_s`` between checkpoints; ``lost_best`` and
    ``lost_``: the part of the throughput that is lost with the best and with other intervals; ``recovery_s``: from an
    interruption until training is where it was, on average, with the best interval.
    """
    rows = [_row(*one, whose) for one in _fitting(cases, strategies) for whose in rates]
    return pd.DataFrame(rows, columns=list(COLUMNS))


def _fitting(cases: Sequence[FailureCase], strategies: Sequence[str]) -> Iterator[tuple[FailureCase, Scheme, int]]:
    """Yield each case under each strategy, with the smallest group in which it fits; skip it where no group does."""
    for case in cases:
        for one in map(scheme, strategies):
            if (group := smallest_group(one, case)) is not None:
                yield case, one, group


def events(
    cases: Sequence[FailureCase] = CASES, strategies: Sequence[str] = ("GGG", "III"), whose: str = RATES[0]
) -> pd.DataFrame:
    """Compare the closed form with a simulation event by event, for each case, strategy and interval.

    Columns: ``model``, ``strategy``, ``interval_s``, ``closed`` and ``played``, the part of the throughput that is
    lost, ``deviation``: the difference in standard errors.
    """
    rows = []
    for case, one, group in _fitting(cases, strategies):
        found = outages(case, one, group, whose)
        for interval in (found.best, *(3600 * hours for hours in HOURS)):
            # Enough intervals for some dozens of interruptions in each of played's 100 runs, thousands in all.
            intervals = max(20, round(_EVENTS / 100 * found.between / (interval + found.write)))
            closed = found.lost(interval)
            counted, error = played(found, interval, intervals=intervals)
            rows.append(
                {
                    "model": case.model,
                    "strategy": str(one),
                    "interval_s": interval,
                    "closed": closed,
                    "played": counted,
                    "deviation": (counted - closed) / error,
                }
            )
    return pd.DataFrame(rows)


def smallest_group(one: Scheme, case: FailureCase) -> int | None:
    """Return the ranks of the smallest group of whole nodes in which the model states fit; None: no group does."""
    capacity = load_profile(HARDWARE).memory_gbytes * 1e9 * FREE
    for nodes in range(1, case.ranks // GPUS + 1):
        group = nodes * GPUS
        if case.ranks % group == 0 and _memory(one, case, group) <= capacity:
            return group
    return None


def outages(case: FailureCase, one: Scheme, group: int, whose: str) -> Outages:
    """Return the rates and downtimes of a case under a strategy. ``whose``: one of :data:`RATES`."""
    profile = load_profile(HARDWARE)
    storage = fact("failure.storage", FACTS) * 1e9 * case.ranks  # bytes a second
    whole = fact("failure.checkpoint_bytes", FACTS) * case.parameters
    restart = fact("failure.restart", FACTS)
    # State that several groups hold is read by each of them, or by one group that passes it on over the network.
    copies = case.ranks * _saved(one, case, group) / whole
    passed_on = _from_peer(one, case, group, profile)
    load = min(copies * whole / storage, whole / storage + passed_on)
    peer = recovers(one, case, group)
    return Outages(
        between=3600 * fact(f"failure.{whose}", FACTS) / case.ranks,
        write=whole / storage,
        rollback=restart + load,
        repairable=fact("failure.one_host", FACTS) if peer else 0.0,
        repair=restart + passed_on if peer else 0.0,
        step=computation(
            Size(case.parameters, case.parameters),
            tokens=case.batch / case.ranks,
            flops=profile.tflops * 1e12 * profile.efficiency,
        ),
    )


def recovers(one: Scheme, case: FailureCase, group: int) -> bool:
    """Check whether other hosts have a lost host's optimizer state; parameters are computed from that."""
    parts = one.strategy.state.parts(case.ranks, group)
    return case.ranks // parts > 1


def _memory(one: Scheme, case: FailureCase, group: int) -> float:
    return memory(one, Size(case.parameters, case.parameters), Cluster(case.ranks, group, GPUS)).total


def _saved(one: Scheme, case: FailureCase, group: int) -> float:
    """Return the bytes of a rank that a checkpoint restores: its parameters and its state."""
    held = memory(one, Size(case.parameters, case.parameters), Cluster(case.ranks, group, GPUS))
    return held.parameters + held.state


def _from_peer(one: Scheme, case: FailureCase, group: int, profile: Profile) -> float:
    """Return the seconds in which a node receives its GPUs' fp32 copy, moments and weights over its network."""
    node = GPUS * profile.flow_gbits_per_s(GPUS) * 1e9 / 8  # bytes a second
    return GPUS * _saved(one, case, group) / node


def _row(case: FailureCase, one: Scheme, group: int, whose: str) -> dict[str, Any]:
    found = outages(case, one, group, whose)
    best = found.best
    peer = found.repairable > 0
    again = best / 2 if math.isfinite(best) else 0.0
    repaired = found.repair + found.step / 2
    return {
        "model": case.model,
        "ranks": case.ranks,
        "strategy": str(one),
        "group": group,
        "state_gb": _memory(one, case, group) / 1e9,
        "peer": peer,
        "rate": whose,
        "between_h": found.between / 3600,
        "checkpoint_s": found.write,
        "rollback_s": found.rollback,
        "repair_s": found.repair if peer else float("nan"),
        "young_s": found.young,
        "best_s": best,
        "lost_best": found.lost(best),
        **{f"lost_{hours:g}h": found.lost(3600 * hours) for hours in HOURS},
        "recovery_s": (1 - found.repairable) * (found.rollback + again) + found.repairable * repaired,
    }
