"""A small model, its data, and ways to train it: by torch's DDP, by our engine, live or as a dry run."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from streamrace.device import costs, dry
from streamrace.device.device import COMPUTE, Device
from streamrace.device.hardware_costs import clocked
from streamrace.device.tracing import Tracer
from streamrace.scenarios.sharding.engine import ShardedEngine
from streamrace.scenarios.sharding.lanes import NoStreams, TracedStreams
from streamrace.scenarios.sharding.strategy import Strategy
from streamrace.scenarios.sharding.synchronisations import Sync
from streamrace.scenarios.sharding.topology import Topology
from streamrace.scenarios.sharding.units import Piece
from streamrace.trace.records import TraceRecord, begin
from tests.sharding.ranks import Result, timing_of

_KEPT: list[nn.Module] = []  # to take a DDP apart in the middle of a process may hang: see scenarios/ddp.py
WORDS, WIDTH, CLASSES, TOKENS = 11, 7, 5, 6


class Block(nn.Module):
    """No size of it divides by any number of ranks."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, WIDTH + 4)
        self.down = nn.Linear(WIDTH + 4, WIDTH)

    def forward(self, hidden: Tensor) -> Tensor:
        return hidden + self.down(torch.relu(self.up(self.norm(hidden))))  # type: ignore[no-any-return]


class Net(nn.Module):
    def __init__(self, blocks: int = 2) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(blocks))
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, words: Tensor, classes: Tensor) -> Tensor:
        hidden = self.embedding(words)
        for block in self.blocks:
            hidden = block(hidden)
        return nn.functional.cross_entropy(self.head(hidden).float(), classes)


def net(*, exact: bool = False, frozen: Collection[str] = (), blocks: int = 2) -> Net:
    """The same on all ranks. ``exact``: gradients of few bits, whose sums are the same in any order.

    ``frozen``: beginnings of names that are not trained.
    """
    torch.manual_seed(3)
    model = Net(blocks)
    for name, parameter in model.named_parameters():
        if name.startswith(tuple(frozen)):
            parameter.requires_grad_(False)
        elif exact:
            parameter.register_hook(few_bits)
    return model


def few_bits(gradient: Tensor) -> Tensor:
    return (gradient * 256).round().clamp(-3, 3) / 256


def batch(rank: int, step: int, micro_batch: int, *, of: ShardedEngine | None = None) -> tuple[Tensor, Tensor]:
    """Where the engine trains, or on the CPU. It gets there without a wait of the host."""
    generator = torch.Generator().manual_seed(rank * 1009 + step * 31 + micro_batch)
    words = torch.randint(0, WORDS, (TOKENS,), generator=generator)
    classes = torch.randint(0, CLASSES, (TOKENS,), generator=generator)
    if of is None:
        return words, classes
    place = of.order.streams.device
    return words.to(place, non_blocking=True), classes.to(place, non_blocking=True)


def sgd(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    """All factors are powers of two: no rounding but that of the sums."""
    return torch.optim.SGD(parameters, lr=0.125, momentum=0.5)


def by_ddp(model: nn.Module, rank: int, *, steps: int, accumulation: int, optimizer: Any = sgd) -> list[Tensor]:
    """Torch's DDP: the parameters in the end."""
    wrapped = nn.parallel.DistributedDataParallel(model)
    _KEPT.append(wrapped)
    updates = optimizer([one for one in model.parameters() if one.requires_grad])
    for step in range(steps):
        for micro_batch in range(accumulation):
            last = micro_batch == accumulation - 1
            with nullcontext() if last else wrapped.no_sync():
                (wrapped(*batch(rank, step, micro_batch)) / accumulation).backward()
        updates.step()
        updates.zero_grad()
    return [one.detach().clone() for one in model.parameters()]


def engine(
    model: nn.Module, strategy: Strategy, topology: Topology, device: Device | None, **how: Any
) -> ShardedEngine:
    streams = NoStreams() if device is None else TracedStreams(device)
    return ShardedEngine(model, strategy, topology, streams=streams, **{"optimizer": sgd, **how})


def train(trained: ShardedEngine, rank: int, *, steps: int) -> list[Tensor]:
    """Losses of all micro-batches."""
    losses = []
    for step in range(steps):
        for micro_batch in range(trained.accumulation):
            loss = trained(*batch(rank, step, micro_batch, of=trained))
            trained.backward(loss)
            trained.step()
            losses.append(loss.detach())
    return losses


def adamw(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=0.01, fused=True)


def values(trained: ShardedEngine) -> list[Tensor]:
    """The whole parameters, in the model's order and in the host's memory: all ranks take part."""
    whole: dict[str, Tensor] = {}
    for unit in trained.units:
        trained.parameters.use(unit, backward=False)
        for piece in unit.pieces:
            whole.update({part.name: part.parameter.detach().clone() for part in piece.parts})
    trained.parameters.release_all()
    return [whole[name].cpu() for name, _ in trained.model.named_parameters()]


def probed(trained: ShardedEngine, device: Device) -> None:
    """Let the trace know what the parameters are whenever they are about to be used."""

    def see(piece: Piece) -> None:
        for part in piece.parts:
            device.probe("parameter", part.name, part.parameter.detach(), lambda value: None)

    trained.parameters.listener = see


@contextmanager
def rehearsal(ranks: int) -> Iterator[tuple[Device, list[TraceRecord]]]:
    """A device that computes nothing, as rank 0 of ``ranks`` of one node, and the trace of what it is given.

    The trace is whole behind it. One number of ranks for each process.
    """
    if not dry.active():
        dry.install(dry.World(ranks))
    timing = timing_of(ranks)
    costs.use(clocked(timing, 0))
    records: list[TraceRecord] = [begin(0, ranks)]
    tracer = Tracer(records.extend)
    device = Device(timing, world=ranks)
    device.name_stream(device.default_stream(), COMPUTE)
    dist.init_process_group("nccl", store=dist.HashStore(), rank=0, world_size=ranks)
    try:
        yield device, records
    finally:
        dist.destroy_process_group()
    tracer.close()


def rehearsed(
    strategy: Strategy, *, without: Collection[Sync] = (), ranks: int = 4, group: int = 2, **how: Any
) -> list[TraceRecord]:
    """The trace of two steps of two micro-batches."""
    with rehearsal(ranks) as (device, records):
        trained = engine(net(), strategy, Topology.of(group), device, without=without, accumulation=2, **how)
        train(trained, 0, steps=2)
    return records


def forked(target: Callable[[], Any], folder: Any) -> Any:
    """What ``target`` gives in a process of its own."""
    from streamrace.device.ranks.cluster import run_ranks

    results: list[Result] = []
    run_ranks(
        1,
        lambda me: me.report(Result(target())),
        folder=folder,
        kinds=(Result,),
        receive=lambda _, message: results.append(message),
    )
    return results[0].value
