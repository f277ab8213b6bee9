"""Stock DDP, FSDP1 and FSDP2, each in many configurations: programs for :func:`world.together`.

Each gives its losses and its parameters, so that a run on the device can be compared with one on the CPU, bit for bit.
Optimizers are told not to choose by the device (``foreach``); gloo knows no average, so FSDP2 sums.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import itertools
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh

STEPS = 3
WIDTH = 32
Configuration = Callable[[int, int, str], Any]
"""Gets rank, world and device; gives what must be the same on each device."""


def warm() -> None:
    """Import what torch imports when it is first used: once, before the ranks are forked."""
    for name in (
        "torch._dynamo",
        "torch.distributed.algorithms._checkpoint.checkpoint_wrapper",
        "torch.distributed.algorithms.ddp_comm_hooks.default_hooks",
        "torch.distributed.algorithms.model_averaging.averagers",
        "torch.distributed.fsdp.sharded_grad_scaler",
        "torch.distributed.optim",
    ):
        importlib.import_module(name)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(torch.nn.functional.gelu(self.up(self.norm(x))))


class Net(nn.Sequential):
    def __init__(self, *extra: nn.Module) -> None:
        torch.manual_seed(7)
        super().__init__(nn.Linear(8, WIDTH), *extra, Block(), Block(), nn.Linear(WIDTH, 4))


def batches(rank: int, device: str, dtype: torch.dtype = torch.float32) -> list[tuple[Tensor, Tensor]]:
    """All before the first step: to copy one blocks the host, which would order each step behind the one before."""
    numbers = torch.Generator().manual_seed(rank)
    return [
        (
            torch.randn(6, 8, generator=numbers).to(device, dtype),
            torch.randint(0, 4, (6,), generator=numbers).to(device),
        )
        for _ in range(STEPS)
    ]


def loss_of(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return nn.functional.cross_entropy(model(x).float(), y)


def train(
    model: nn.Module, rank: int, device: str, *, optimizer: Any = None, scaler: Any = None, clip: Any = None,
    autocast: torch.dtype | None = None, silent: Any = None, kind: Any = None, dtype: torch.dtype = torch.float32,
) -> tuple[list[float], list[Any]]:  # fmt: skip
    """``clip``: clips gradients, gives their norm. ``silent``: a context in which gradients are not reduced; each
    batch is then used twice, the first time within it. ``kind``: makes the optimizer."""
    kind = kind or functools.partial(torch.optim.AdamW, lr=0.01, foreach=False)
    optimizer = optimizer or kind(model.parameters())
    seen: list[Tensor] = []
    for x, y in batches(rank, device, dtype):
        for part in range(2 if silent else 1):
            with silent() if silent and part == 0 else contextlib.nullcontext():
                with torch.autocast(device, autocast) if autocast else contextlib.nullcontext():
                    loss = loss_of(model, x, y)
                (scaler.scale(loss) if scaler else loss).backward()
        seen.append(loss.detach())
        if scaler:
            scaler.unscale_(optimizer)
        if clip:
            seen.append(clip())
        if scaler:
            scaler.step(optimizer)
            scaler.update()
        else:
            optimizer.step()
        optimizer.zero_grad()
    return [one.float().item() for one in seen], state_of(model)


def state_of(model: nn.Module) -> list[Any]:
    """This rank's own numbers: parameters and buffers."""
    made = []
    for one in (*model.parameters(), *model.buffers()):
        local = one.to_local() if hasattr(one, "to_local") else one  # type: ignore[operator]
        made.append(local.detach().float().cpu().tolist())
    return made


# -- DistributedDataParallel ---------------------------------------------------------------------


def ddp(rank: int, world: int, device: str, *, net: Any = Net, hook: Any = None, how: Any = None, **loop: Any) -> Any:
    model = nn.parallel.DistributedDataParallel(net().to(device), bucket_cap_mb=0.01, **(how or {}))
    if hook:
        model.register_comm_hook(*hook())
    if loop.get("silent"):
        loop["silent"] = model.no_sync
    if loop.get("clip"):
        loop["clip"] = lambda: nn.utils.clip_grad_norm_(model.parameters(), 0.1, foreach=False)
    if loop.get("scaler"):
        loop["scaler"] = torch.amp.GradScaler(device, init_scale=2.0 ** loop["scaler"])
    return train(model, rank, device, **loop)


class Unused(Net):
    """The rank decides whether a block is used."""

    def forward(self, x: Tensor) -> Tensor:
        x = self[0](x)
        for block in list(self)[1 if dist.get_rank() else 2 : -1]:
            x = block(x)
        return self[-1](x)  # type: ignore[no-any-return]


class Bare(nn.Sequential):
    """Of operators alone that autocast treats alike on both devices."""

    def __init__(self) -> None:
        torch.manual_seed(7)
        super().__init__(nn.Linear(8, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 4))


def normed() -> nn.Module:
    return Net(nn.BatchNorm1d(WIDTH))


def compress() -> Any:
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

    return None, default_hooks.fp16_compress_hook


def halves(state, bucket):  # type: ignore[no-untyped-def] # torch compares annotations, which are strings here
    """Sends a fresh tensor, which nobody holds but the collective."""
    sent = bucket.buffer().bfloat16() / dist.get_world_size()
    return dist.all_reduce(sent, async_op=True).get_future().then(lambda done: done.value()[0].float())


def zero_redundancy(rank: int, world: int, device: str) -> Any:
    from torch.distributed.optim import ZeroRedundancyOptimizer

    def kind(parameters: Any) -> Any:
        return ZeroRedundancyOptimizer(parameters, torch.optim.AdamW, lr=0.01, foreach=False)

    return ddp(rank, world, device, kind=kind)


def in_backward(rank: int, world: int, device: str) -> Any:
    """The optimizer runs in hooks of the backward pass."""
    from torch.distributed.optim import _apply_optimizer_in_backward

    net = Net().to(device)
    _apply_optimizer_in_backward(torch.optim.SGD, net.parameters(), {"lr": 0.1, "foreach": False})
    model = nn.parallel.DistributedDataParallel(net, bucket_cap_mb=0.01, gradient_as_bucket_view=True)
    losses = []
    for x, y in batches(rank, device):
        loss = loss_of(model, x, y)
        loss.backward()
        losses.append(loss.detach())
    return [one.item() for one in losses], state_of(model)


def averaged(rank: int, world: int, device: str) -> Any:
    """Each rank trains alone, and parameters are averaged every second step."""
    from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager

    model = Net().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, foreach=False)
    averager = PeriodicModelAverager(period=2)
    losses = []
    for x, y in batches(rank, device):
        loss = loss_of(model, x, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        averager.average_parameters(model.parameters())
        losses.append(loss.detach())
    return [one.item() for one in losses], state_of(model)


DDP: dict[str, Configuration] = {
    "ddp": ddp,
    "ddp, gradients are views of buckets": functools.partial(ddp, how={"gradient_as_bucket_view": True}),
    "ddp, static graph": functools.partial(ddp, how={"static_graph": True}),
    "ddp, unused parameters": functools.partial(ddp, net=Unused, how={"find_unused_parameters": True}),
    "ddp, accumulated": functools.partial(ddp, silent=True),
    "ddp, clipped": functools.partial(ddp, clip=True),
    "ddp, batch norm": functools.partial(ddp, net=normed),
    "ddp, buffers not broadcast": functools.partial(ddp, net=normed, how={"broadcast_buffers": False}),
    "ddp, autocast": functools.partial(ddp, net=Bare, autocast=torch.bfloat16),
    "ddp, fp16 with an overflow": functools.partial(ddp, net=Bare, autocast=torch.float16, scaler=40),
    "ddp, a hook of the program": functools.partial(ddp, hook=lambda: (None, halves)),
    "ddp, compressed to fp16": functools.partial(ddp, hook=compress),
    "model averaging": averaged,
    "ddp, zero redundancy": zero_redundancy,
    "ddp, optimizer in backward": in_backward,
}

# -- FullyShardedDataParallel --------------------------------------------------------------------


def fsdp1(rank: int, world: int, device: str, *, strategy: str = "FULL_SHARD", checkpointed: bool = False,
          scaler: bool = False, dtypes: Any = None, prefetch: str = "", **how: Any) -> Any:  # fmt: skip
    from torch.distributed.fsdp import (
        BackwardPrefetch,
        CPUOffload,
        FullyShardedDataParallel,
        MixedPrecision,
        ShardingStrategy,
    )
    from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler
    from torch.distributed.fsdp.wrap import ModuleWrapPolicy

    loop = {name: how.pop(name) for name in ("silent", "clip", "autocast") if name in how}
    if "HYBRID" in strategy:
        how["device_mesh"] = init_device_mesh(device, (2, world // 2))
    if dtypes:
        how["mixed_precision"] = MixedPrecision(*dtypes)
    if prefetch:
        how["backward_prefetch"] = getattr(BackwardPrefetch, prefetch, None)
    if how.pop("offload", False) and device == "cuda":  # on the CPU FSDP1 asks for streams that are not there
        how["cpu_offload"] = CPUOffload(offload_params=True)
    model = FullyShardedDataParallel(
        Net().to(device), auto_wrap_policy=ModuleWrapPolicy({Block}), sharding_strategy=ShardingStrategy[strategy],
        device_id=rank if device == "cuda" else torch.device("cpu"), **how,
    )  # fmt: skip
    if checkpointed:
        checkpoint_blocks(model)
    if loop.get("silent"):
        loop["silent"] = model.no_sync
    if loop.get("clip"):
        loop["clip"] = lambda: model.clip_grad_norm_(0.1)
    if scaler:
        loop["scaler"] = ShardedGradScaler(device, init_scale=2.0**40)
    return train(model, rank, device, **loop)


def checkpoint_blocks(model: nn.Module) -> None:
    from torch.distributed.algorithms._checkpoint import checkpoint_wrapper as wrapper

    kind = functools.partial(wrapper.checkpoint_wrapper, checkpoint_impl=wrapper.CheckpointImpl.NO_REENTRANT)
    wrapper.apply_activation_checkpointing(
        model, checkpoint_wrapper_fn=kind, check_fn=lambda module: isinstance(module, Block)
    )


HALF = torch.bfloat16
FSDP1: dict[str, Configuration] = {
    "fsdp1": fsdp1,
    "fsdp1, original parameters": functools.partial(fsdp1, use_orig_params=True),
    "fsdp1, zero-2": functools.partial(fsdp1, strategy="SHARD_GRAD_OP"),
    "fsdp1, zero-2, original parameters": functools.partial(fsdp1, strategy="SHARD_GRAD_OP", use_orig_params=True),
    "fsdp1, not sharded": functools.partial(fsdp1, strategy="NO_SHARD"),
    "fsdp1, bf16": functools.partial(fsdp1, dtypes=(HALF, HALF, HALF)),
    "fsdp1, bf16 reduced in fp32": functools.partial(fsdp1, dtypes=(HALF, torch.float32, HALF), use_orig_params=True),
    "fsdp1, fp16 with an overflow": functools.partial(
        fsdp1, dtypes=(torch.float16, torch.float16, torch.float16), scaler=True
    ),
    "fsdp1, offloaded": functools.partial(fsdp1, offload=True),
    "fsdp1, prefetch after": functools.partial(fsdp1, prefetch="BACKWARD_POST"),
    "fsdp1, no prefetch": functools.partial(fsdp1, prefetch="NONE"),
    "fsdp1, forward prefetch": functools.partial(fsdp1, forward_prefetch=True),
    "fsdp1, gathers not limited": functools.partial(fsdp1, limit_all_gathers=False),
    "fsdp1, accumulated": functools.partial(fsdp1, silent=True),
    "fsdp1, clipped": functools.partial(fsdp1, clip=True),
    "fsdp1, checkpointed": functools.partial(fsdp1, checkpointed=True, use_orig_params=True),
}
HYBRID1: dict[str, Configuration] = {
    "fsdp1, hybrid": functools.partial(fsdp1, strategy="HYBRID_SHARD"),
    "fsdp1, hybrid zero-2": functools.partial(fsdp1, strategy="_HYBRID_SHARD_ZERO2", use_orig_params=True),
}

# -- fully_shard -----------------------------------------------------------------------------------


def fsdp2(rank: int, world: int, device: str, *, hybrid: bool = False, accumulated: bool = False,
          clip: bool = False, checkpointed: bool = False, explicit: bool = False, **how: Any) -> Any:  # fmt: skip
    from torch.distributed.fsdp import fully_shard

    net: Any = Net().to(device)
    shape, names = ((2, world // 2), ("replicate", "shard")) if hybrid else ((world,), ("shard",))
    how["mesh"] = init_device_mesh(device, shape, mesh_dim_names=names)
    if checkpointed:
        checkpoint_blocks(net)
    for child in net:
        fully_shard(child, **how)
    fully_shard(net, **how)
    for module in net.modules():
        if hasattr(module, "set_force_sum_reduction_for_comms"):
            module.set_force_sum_reduction_for_comms(True)
    if explicit:
        for module, ahead in itertools.pairwise(net):
            module.set_modules_to_forward_prefetch([ahead])
            ahead.set_modules_to_backward_prefetch([module])

    @contextlib.contextmanager
    def silent() -> Any:
        net.set_requires_gradient_sync(False)
        yield
        net.set_requires_gradient_sync(True)

    loop: dict[str, Any] = {"silent": silent} if accumulated else {}
    if clip:
        loop["clip"] = lambda: whole(nn.utils.clip_grad_norm_(net.parameters(), 0.1, foreach=False))
    return train(net, rank, device, **loop)


def whole(value: Any) -> Tensor:
    return value.full_tensor() if hasattr(value, "full_tensor") else value  # type: ignore[no-any-return]


def half2(rank: int, world: int, device: str, **how: Any) -> Any:
    from torch.distributed.fsdp import MixedPrecisionPolicy

    return fsdp2(rank, world, device, mp_policy=MixedPrecisionPolicy(HALF, torch.float32), **how)


def offloaded2(rank: int, world: int, device: str) -> Any:
    from torch.distributed.fsdp import CPUOffloadPolicy

    return fsdp2(rank, world, device, offload_policy=CPUOffloadPolicy(pin_memory=device == "cuda"))


FSDP2: dict[str, Configuration] = {
    "fsdp2": fsdp2,
    "fsdp2, not resharded": functools.partial(fsdp2, reshard_after_forward=False),
    "fsdp2, bf16": half2,
    "fsdp2, accumulated": functools.partial(fsdp2, accumulated=True),
    "fsdp2, clipped": functools.partial(fsdp2, clip=True),
    "fsdp2, checkpointed": functools.partial(fsdp2, checkpointed=True),
    "fsdp2, explicit prefetch": functools.partial(fsdp2, explicit=True),
    "fsdp2, offloaded": offloaded2,
}
HYBRID2: dict[str, Configuration] = {
    "hsdp": functools.partial(fsdp2, hybrid=True),
    "hsdp, bf16": functools.partial(half2, hybrid=True),
}
