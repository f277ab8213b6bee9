"""Trains a PyTorch model under any of the 14 strategies, DDP, ZeRO-1/2/3, MiCS and PaRO among them, in one engine.

    engine = ShardedEngine(model, strategy("IIG"), Topology.of(group=8), streams=NoStreams())
    for batch in batches:
        loss = engine(**batch)
        engine.backward(loss)
        engine.step()

After the paper (PaRO, arXiv 2310.06003, section 3): per micro-batch, parameters are gathered for the forward and again
for the backward pass, gradients are reduced as far as they are kept sharded; every ``accumulation`` micro-batches the
gradients go on to the optimizer state's level, the optimizer updates its part, and the parameters go back to their
level. Modules and autograd are hooked as in FSDP (arXiv 2304.11277, section 3).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from itertools import groupby
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from streamrace.scenarios.sharding.empty import in_memory
from streamrace.scenarios.sharding.gradients import Gradients
from streamrace.scenarios.sharding.lanes import LaneOrder, Streams
from streamrace.scenarios.sharding.layout import ShardLayout, padded
from streamrace.scenarios.sharding.levels import Levels
from streamrace.scenarios.sharding.parameters import Parameters
from streamrace.scenarios.sharding.rings import Collectives, TorchCollectives
from streamrace.scenarios.sharding.strategy import Level, ShardingError, Strategy
from streamrace.scenarios.sharding.synchronisations import Sync
from streamrace.scenarios.sharding.topology import Topology
from streamrace.scenarios.sharding.units import Part, Piece, Unit, units_of
from streamrace.scenarios.sharding.updates import MakeOptimizer, Updates

MakeCollectives = Callable[[Topology, LaneOrder], Collectives]


def adamw(parameters: list[nn.Parameter], learning_rate: float = 1e-3) -> torch.optim.Optimizer:
    """Create an AdamW that runs in one kernel."""
    return torch.optim.AdamW(parameters, lr=learning_rate, fused=True)


class ShardedEngine:
    """Shards ``model`` on this rank and trains it.

    ``dtype``: of the computation; the optimizer works in fp32. ``accumulation``: micro-batches in a step. ``clip``: the
    largest norm of all gradients. ``without``: synchronisations to remove. ``across``: creates the collectives of all
    ranks (default: torch's; :class:`streamrace.scenarios.sharding.rings.HoRing` for one).

    All ranks begin with the values of rank 0; parameters on the meta device, which have none, begin at zero and are
    replaced in the model. The model's parameters hold nothing outside of the passes.

    Raises :class:`ShardingError` for a model without trained parameters.
    """

    def __init__(
        self,
        model: nn.Module,
        strategy: Strategy,
        topology: Topology,
        *,
        streams: Streams,
        optimizer: MakeOptimizer = adamw,
        dtype: torch.dtype = torch.float32,
        accumulation: int = 1,
        clip: float | None = None,
        without: Collection[Sync] = (),
        across: MakeCollectives | None = None,
    ) -> None:
        self.model, self.strategy, self.topology = model, strategy, topology
        self.order = LaneOrder(streams, without)
        self.accumulation = accumulation
        self.steps = 0
        self.layout = _layout(strategy, topology)
        everywhere = TorchCollectives(topology.across) if across is None else across(topology, self.order)
        levels = Levels(self.layout, everywhere, TorchCollectives(topology.within), TorchCollectives(topology.between))
        self._dtype = dtype
        for buffer in model.buffers():  # not sharded: a buffer on the host would be copied in each forward pass
            buffer.data = buffer.data.to(streams.device)
        self.units = [self._sharded(unit) for unit in units_of(model)]
        self.pieces = [piece for unit in self.units for piece in unit.pieces]
        if not any(piece.trained for piece in self.pieces):
            raise ShardingError("the model has no parameter that is trained: leave one unfrozen")
        self.parameters = Parameters(self.units, strategy.parameters, levels, self.order, dtype)
        self.gradients = Gradients(self.pieces, strategy, levels, self.order, dtype, accumulation)
        self._updates = Updates(self.pieces, strategy.state, levels, self.order, self.parameters, optimizer, clip)
        self._entered: list[Unit] = []  # in the backward pass, and not released
        self._backward = False  # a forward pass in it is gradient checkpointing's, of units that are there
        self._due = 0  # micro-batches since the last step
        for module in dict.fromkeys(module for unit in self.units for module in unit.modules):
            needed = [unit for unit in self.units if module in unit.modules]
            module.register_forward_pre_hook(self._enter(needed))
            module.register_forward_hook(self._leave(needed), always_call=True)

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        return self._updates.optimizer

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        """Run the model's forward pass."""
        with self.parameters.saving():
            return self.model(*arguments, **keywords)

    def backward(self, loss: Tensor) -> None:
        """Run the backward pass of a micro-batch, whose ``loss`` is a mean; the step uses the mean of all losses."""
        self.gradients.begin()
        self._backward = True
        try:
            (loss / self.accumulation).backward()
            self.gradients.end()
        finally:
            self._backward = False
            self._entered.clear()
        self.parameters.release_all()
        self._due += 1

    def step(self) -> Tensor | None:
        """Update the parameters after a step's last micro-batch; return the norm, on the device, if clipped."""
        if self._due < self.accumulation:
            return None
        self._due = 0
        self.steps += 1
        return self._updates.step()

    def partitions(self) -> Iterator[tuple[str, Tensor]]:
        """Yield this rank's part of each piece's parameters, and of their fp32 masters, without padding."""
        for level, prefix in ((self.strategy.parameters, ""), (self.strategy.state, "fp32 ")):
            for piece in self.pieces:
                values = piece.master if prefix else piece.shard
                if values is not None:
                    start, end = self.layout.interval(level, piece.length)
                    yield prefix + piece.name, values.detach()[: max(0, min(end, piece.numel) - start)]

    # -- hooks ------------------------------------------------------------------------------------------

    def _enter(self, units: list[Unit]) -> Callable[..., None]:
        """Return a hook that fetches ``units``, those that a module needs: more than its own where weights are tied."""

        def enter(module: nn.Module, arguments: Any) -> None:
            for unit in () if self._backward else units:
                self.parameters.use(unit, backward=False)

        return enter

    def _leave(self, units: list[Unit]) -> Callable[..., None]:
        def leave(module: nn.Module, arguments: Any, output: Any) -> None:
            if self._backward:
                return
            for unit in units:
                self.parameters.release(unit)
            if torch.is_grad_enabled():
                for tensor in pytree.tree_leaves(output):
                    if isinstance(tensor, Tensor) and tensor.requires_grad:
                        tensor.register_hook(self._enter_backward(units))

        return leave

    def _enter_backward(self, units: list[Unit]) -> Callable[[Tensor], None]:
        """Return a hook for the gradient of one of a module's outputs.

        Autograd takes the last computation first, so units that entered before are done, except those that span others.
        """

        def enter(gradient: Tensor) -> None:
            if all(unit in self._entered for unit in units):
                return
            for other in [unit for unit in self._entered if not unit.spans and unit not in units]:
                self._entered.remove(other)
                self.parameters.release(other)
            for unit in units:
                if unit not in self._entered:
                    self._entered.append(unit)
                    self.parameters.use(unit, backward=True)

        return enter

    # -- making pieces -----------------------------------------------------------------------------------

    def _sharded(self, unit: Unit) -> Unit:
        parameters = sorted(unit.parameters, key=lambda pair: not pair[1].requires_grad)
        pieces = [
            self._piece(unit, list(group), trained=trained)
            for trained, group in groupby(parameters, key=lambda pair: pair[1].requires_grad)
        ]
        unit.pieces = tuple(pieces)
        return unit

    def _piece(self, unit: Unit, parameters: list[tuple[str, nn.Parameter]], *, trained: bool) -> Piece:
        streams, strategy = self.order.streams, self.strategy
        parts = tuple(self._parts(parameters))
        numel = sum(part.numel for part in parts)
        length = padded(numel, self.topology.ranks)
        values = torch.zeros(length, dtype=torch.float32, device=streams.device)
        nothing = torch.empty(0, dtype=self._dtype, device=streams.device)
        for (_, parameter), part in zip(parameters, parts, strict=True):
            if parameter is part.parameter:  # it has values
                values[part.start : part.start + part.numel].copy_(parameter.detach().reshape(-1))
                parameter.data = nothing
        has_values = any(parameter is part.parameter for (_, parameter), part in zip(parameters, parts, strict=True))
        if self.topology.ranks > 1 and has_values:
            dist.broadcast(values, 0, group=self.topology.across)
        name = unit.name if trained else f"{unit.name} (frozen)"
        start, end = self.layout.interval(strategy.parameters, length)
        shard = torch.empty(end - start, dtype=self._dtype, device=streams.device)
        shard.copy_(values[start:end])
        streams.label(shard, "primary", name)
        piece = Piece(name, parts, numel, length, trained, shard, updated=self.order.mark())
        if trained:
            start, end = self.layout.interval(strategy.state, length)
            piece.master = nn.Parameter(values[start:end].clone())
            streams.label(piece.master.detach(), "master", name)
        return piece

    def _parts(self, parameters: list[tuple[str, nn.Parameter]]) -> Iterator[Part]:
        start = 0
        for name, parameter in parameters:
            nothing = torch.empty(0, dtype=self._dtype, device=self.order.streams.device)
            yield Part(name, in_memory(self.model, name, parameter, nothing), parameter.shape, start)
            start += parameter.numel()


def _layout(strategy: Strategy, topology: Topology) -> ShardLayout:
    """Return the layout. Without an I, groups play no part: each rank is a group of its own, in the order of ranks."""
    if Level.I in (strategy.parameters, strategy.gradients, strategy.state):
        return ShardLayout(topology.ranks, topology.group, topology.where, topology.number)
    return ShardLayout(topology.ranks, 1, topology.rank, 0)
