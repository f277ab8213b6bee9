"""What trains a scenario's model: stock DeepSpeed, or our own sharded engine. The program does not ask which."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from frameworks.deepspeed import adapter
from scenarios.full_size import loss_of
from scenarios.scenario import Scenario
from scenarios.sharding import checkpoint
from scenarios.sharding.checkpoint_index import drop_older, newest, of_step
from scenarios.sharding.engine import ShardedEngine, adamw
from scenarios.sharding.lanes import NoStreams, Streams, TracedStreams
from scenarios.sharding.rings import RINGS
from scenarios.sharding.strategy import Strategy, strategy
from scenarios.sharding.synchronisations import synchronisations
from scenarios.sharding.topology import Topology
from scenarios.sharding.units import Piece
from simgpu.device import Device

Seen = Callable[[str, Tensor], None]


class Trainer(Protocol):
    """``engine``: what a NaN watch can be given."""

    engine: Any

    def forward(self, batch: Mapping[str, Tensor]) -> Tensor:
        """The loss."""
        ...

    def backward(self, loss: Tensor) -> None: ...

    def step(self) -> None: ...

    def gradient_norm(self) -> Tensor | float | None: ...

    def watch(self, seen: Seen) -> None:
        """``seen`` gets each parameter's name and value whenever it is about to be used."""
        ...

    def label(self) -> None:
        """Tell the trace what stands where in memory; again, as some of it comes and goes."""
        ...

    def edit(self, seen: Seen) -> None:
        """Look at a parameter, then double it."""
        ...

    def partitions(self) -> Iterator[tuple[str, Tensor]]:
        """What this rank keeps, without padding."""
        ...

    def save(self, run: Path, step: int) -> None:
        """A checkpoint in the run's folder, after ``step``."""
        ...

    def load(self, path: Path) -> int:
        """Go on from a checkpoint, or a run's last one. Gives the steps that are done."""
        ...


def trainer(scenario: Scenario, model: nn.Module, device: Device | None) -> Trainer:
    """Of the scenario's kind, with the model in it."""
    if scenario.sharding:
        return Sharded(
            model,
            device,
            strategy(scenario.sharding),
            group=scenario.sharding_group,
            learning_rate=scenario.learning_rate,
            precision=scenario.precision,
            accumulation=scenario.accumulation,
            clip=scenario.clip,
            rings=scenario.rings,
            without=scenario.without,
        )
    # Fused, as DeepSpeed's own Adam is: the plain one reads its step counter, which on a GPU is the host's
    # own memory, but here would wait for the device.
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=scenario.learning_rate, fused=True)
    engine, *_ = adapter.initialize(model=model, optimizer=optimizer, config=scenario.deepspeed_config())
    return DeepSpeed(engine, device)


def _streams(device: Device | None) -> Streams:
    if device is None:
        return NoStreams()
    return TracedStreams(device)


class DeepSpeed:
    """Stock DeepSpeed's ``engine``."""

    def __init__(self, engine: Any, device: Device | None) -> None:
        self.engine = engine
        self._device = device
        if device is not None:
            adapter.name_streams(engine, device)

    def forward(self, batch: Mapping[str, Tensor]) -> Tensor:
        return loss_of(self.engine(**batch))

    def backward(self, loss: Tensor) -> None:
        self.engine.backward(loss)

    def step(self) -> None:
        self.engine.step()

    def gradient_norm(self) -> Tensor | float | None:
        norm: Tensor | float | None = self.engine.get_global_grad_norm()
        return norm

    def watch(self, seen: Seen) -> None:
        adapter.watch_parameters(self.engine, seen)

    def label(self) -> None:
        if self._device is not None:
            adapter.label_memory(self.engine, self._device)

    def edit(self, seen: Seen) -> None:
        adapter.edit(self.engine, seen)

    def partitions(self) -> Iterator[tuple[str, Tensor]]:
        return adapter.partitions(self.engine)

    def save(self, run: Path, step: int) -> None:
        raise NotImplementedError("a scenario with checkpoints is refused before it gets here")

    def load(self, path: Path) -> int:
        raise NotImplementedError("a scenario with checkpoints is refused before it gets here")


class Sharded:
    """Our own engine, under the scenario's strategy. It labels its memory itself."""

    def __init__(
        self,
        model: nn.Module,
        device: Device | None,
        one: Strategy,
        *,
        group: int,
        learning_rate: float,
        precision: str,
        accumulation: int,
        clip: float,
        rings: str = "torch",
        without: Collection[str] = (),
    ) -> None:
        self.engine = ShardedEngine(
            model,
            one,
            Topology.of(group),
            streams=_streams(device),
            optimizer=partial(adamw, learning_rate=learning_rate),
            dtype=torch.bfloat16 if precision == "bf16" else torch.float32,
            accumulation=accumulation,
            clip=clip or None,
            across=RINGS.get(rings),
            without=() if device is None else synchronisations(without),
        )
        self._norm: Tensor | None = None

    def forward(self, batch: Mapping[str, Tensor]) -> Tensor:
        return loss_of(self.engine(**batch))

    def backward(self, loss: Tensor) -> None:
        self.engine.backward(loss)

    def step(self) -> None:
        self._norm = self.engine.step()

    def gradient_norm(self) -> Tensor | float | None:
        return self._norm

    def watch(self, seen: Seen) -> None:
        def see(piece: Piece) -> None:
            for part in piece.parts:
                seen(part.name, part.parameter.detach())

        self.engine.parameters.listener = see

    def label(self) -> None:
        pass

    def edit(self, seen: Seen) -> None:
        raise NotImplementedError("a scenario with an edit is refused before it gets here")

    def partitions(self) -> Iterator[tuple[str, Tensor]]:
        return self.engine.partitions()

    def save(self, run: Path, step: int) -> None:
        checkpoint.save(self.engine, of_step(run, step), step)
        if self.engine.topology.rank == 0:
            drop_older(run, keep=2)  # should the last one turn out to be damaged, there is another

    def load(self, path: Path) -> int:
        return checkpoint.load(self.engine, newest(path))
