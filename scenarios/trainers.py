"""Trains a scenario's model by stock DeepSpeed, or by our own sharded engine, behind the same interface."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from streamrace.device.device import Device
from streamrace.frameworks.base import Framework, Probe, Trainer
from streamrace.frameworks.deepspeed import adapter
from streamrace.scenarios.job import Job
from streamrace.scenarios.scenario import Scenario
from streamrace.scenarios.sharding import checkpoint
from streamrace.scenarios.sharding.checkpoint_index import drop_older, newest, of_step
from streamrace.scenarios.sharding.engine import ShardedEngine, adamw
from streamrace.scenarios.sharding.lanes import NoStreams, TracedStreams
from streamrace.scenarios.sharding.rings import RINGS
from streamrace.scenarios.sharding.strategy import strategy
from streamrace.scenarios.sharding.synchronisations import synchronisations
from streamrace.scenarios.sharding.topology import Topology
from streamrace.scenarios.sharding.units import Piece

framework: Framework = adapter
"""The stock framework whose training is judged; our own engine (:class:`Sharded`) is the alternative."""


def trainer(scenario: Scenario, model: nn.Module, device: Device | None) -> Trainer:
    """Return the scenario's kind of trainer, with the model in it."""
    if scenario.sharding:
        return Sharded(
            model,
            device,
            scenario,
            learning_rate=scenario.learning_rate,
            clip=scenario.clip,
            without=scenario.without,
        )
    # Fused, like DeepSpeed's own Adam: the plain one reads its step counter, which on a GPU is the host's own memory,
    # but here would wait for the device.
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=scenario.learning_rate, fused=True)
    engine = framework.initialize(model=model, optimizer=optimizer, config=scenario.deepspeed_config())
    return framework.trainer(engine, device)


class Sharded:
    """Our own engine, under the scenario's strategy. It can be saved and loaded, too."""

    def __init__(
        self,
        model: nn.Module,
        device: Device | None,
        chosen: Scenario | Job,
        *,
        learning_rate: float = 1e-5,
        clip: float = 1.0,
        without: Collection[str] = (),
    ) -> None:
        self.engine = ShardedEngine(
            model,
            strategy(chosen.sharding),
            Topology.of(chosen.sharding_group),
            streams=NoStreams() if device is None else TracedStreams(device),
            optimizer=partial(adamw, learning_rate=learning_rate),
            dtype=torch.bfloat16 if chosen.precision == "bf16" else torch.float32,
            accumulation=chosen.accumulation,
            clip=clip or None,
            across=RINGS.get(chosen.rings),
            without=() if device is None else synchronisations(without),
        )
        self._norm: Tensor | None = None

    def forward(self, batch: Mapping[str, Tensor]) -> Any:
        return self.engine(**batch)

    def evaluate(self, batch: Mapping[str, Tensor]) -> Any:
        raise NotImplementedError("our own engine has no evaluation: validate without --sharding")

    def backward(self, loss: Tensor) -> None:
        self.engine.backward(loss)

    def step(self) -> None:
        self._norm = self.engine.step()

    def gradient_norm(self) -> Tensor | float | None:
        return self._norm

    def watch(self, probe: Probe) -> None:
        def see(piece: Piece) -> None:
            for part in piece.parts:
                probe(part.name, part.parameter.detach())

        self.engine.parameters.listener = see

    def label(self) -> None:
        """Do nothing: the engine labels its memory itself."""

    def label_state(self) -> None:
        """Do nothing: the engine labels its memory itself."""

    def edit(self, probe: Probe) -> None:
        raise NotImplementedError("a scenario with an edit is refused before it gets here")

    def partitions(self) -> Iterator[tuple[str, Tensor]]:
        return self.engine.partitions()

    def save(self, run: Path, step: int) -> None:
        """Save a checkpoint in the run's folder, after ``step``."""
        checkpoint.save(self.engine, of_step(run, step), step)
        if self.engine.topology.rank == 0:
            drop_older(run, keep=2)  # should the last one be damaged, there is another

    def load(self, path: Path) -> int:
        """Resume from a checkpoint, or a run's last one. Returns the steps done."""
        return checkpoint.load(self.engine, newest(path))
