"""Trains a scenario's model under torch's DistributedDataParallel, on plain gloo: the reference for sharded training.

DDP keeps all states on each rank, and sums gradients in an order of its own. So losses agree bit for bit until the
first step, and later but for the rounding of sums.
"""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import NamedTuple

import torch
from torch.nn.parallel import DistributedDataParallel

from streamrace.device.ranks.cluster import Rank, run_ranks
from streamrace.scenarios.base import ScenarioError
from streamrace.scenarios.full_size import loss_of
from streamrace.scenarios.mmlu_batches import batches
from streamrace.scenarios.models import build
from streamrace.scenarios.scenario import Scenario

Losses = dict[tuple[int, int, int], float]
"""Losses by rank, step and micro-batch, the latter two from 1."""


class DdpTrained(NamedTuple):
    """The report of a rank at its end: step, micro-batch and loss."""

    losses: list[tuple[int, int, float]]


_KEPT: list[DistributedDataParallel] = []


def run(scenario: Scenario, *, folder: Path) -> Losses:
    """Train the scenario, ignoring its sharding. ``folder`` receives the ranks' output.

    Raises :class:`ScenarioError` for a precision that is not fp32: DDP has no fp32 master of a bf16 parameter.
    """
    if scenario.precision != "fp32":
        raise ScenarioError(f"DDP trains in fp32, and the scenario in {scenario.precision}: choose fp32")
    torch.set_num_threads(1)  # sums must not depend on the machine's cores
    found: Losses = {}

    def receive(rank: int, message: DdpTrained) -> None:
        found.update({(rank, step, micro_batch): loss for step, micro_batch, loss in message.losses})

    run_ranks(scenario.ranks, lambda me: _train(me, scenario), folder=folder, kinds=(DdpTrained,), receive=receive)
    return found


def _train(me: Rank, scenario: Scenario) -> None:
    me.join("gloo")
    model = build(
        scenario.model, scenario.size, vocab_size=scenario.vocabulary, seed=scenario.seed, frozen=scenario.frozen
    )
    trained = [one for one in model.parameters() if one.requires_grad]
    wrapped = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(trained, lr=scenario.learning_rate, fused=True)
    data = batches(
        scenario.questions(),
        sequence=scenario.sequence,
        micro_batch=scenario.micro_batch,
        rank=me.rank,
        world=me.world,
        seed=scenario.seed,
    )
    losses = []
    for step in range(1, scenario.steps + 1):
        for micro_batch in range(1, scenario.accumulation + 1):
            last = micro_batch == scenario.accumulation
            with nullcontext() if last else wrapped.no_sync():
                loss = loss_of(wrapped(**next(data)))
                (loss / scenario.accumulation).backward()
            losses.append((step, micro_batch, float(loss.detach())))
        if scenario.clip:
            torch.nn.utils.clip_grad_norm_(trained, scenario.clip)
        optimizer.step()
        optimizer.zero_grad()
    # DDP's objects live until the end of the process. Released here, its reducer may be the last owner of gloo's
    # threads, and would join them while it holds the interpreter's lock, which such a thread may be waiting for.
    _KEPT.append(wrapped)
    me.report(DdpTrained(losses))
