"""Process groups of a dry run: one rank is there, and the others do what it does, at the same time.

In data-parallel training all ranks run the same program on data of the same shape. So a collective starts when this
rank arrives. What the others bring is taken to be what this one brings, where that is known and small
(:mod:`.mirror`); objects are such bytes, so ``all_gather_object`` gives this rank's own object once for each rank.
What only another rank has, as what it sends or broadcasts, is not known; but what rank 0 has broadcast in a dry run of
its own another rank is given (:mod:`.heard`).

Departure from hardware: nobody is late, and no other rank's data differs.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from streamrace.device import collectives, dry, work
from streamrace.device.collectives import CollectiveCall, flat
from streamrace.device.dry.heard import Heard
from streamrace.device.dry.mirror import Elsewhere, Mirror
from streamrace.device.nccl import ProcessGroupNCCL, _gloo
from streamrace.device.sanitizer import unseen


class MirroredProcessGroup(ProcessGroupNCCL):
    """One process group, of which one rank is there."""

    def _meet(self, store: dist.Store) -> tuple[Any, Any, Any]:
        me, size = self.rank(), self.size()
        alone = _gloo(dist.HashStore(), 0, 1, self.options)  # it keeps the group's name
        return Mirror(me, size), _HostMirror(me, size) if self.host else None, alone

    def _give(self, job: CollectiveCall, stream: torch.Stream) -> None:
        if job.kernel == "broadcast" and _heard:
            values = _broadcast(job, sends=job.root == self._ranks[self.rank()])
        else:
            values = _values(job) if all(torch.ops.simgpu.known(one) for one in job.reads) else None
        collectives.launch(job, stream=stream, members=(self._ranks[self.rank()],))
        for one, value in zip(job.writes, values or (), strict=False):
            with torch.inference_mode(), unseen():
                _alias(one).copy_(value)
                torch.ops.simgpu.wrote(one, True)


class _HostMirror(Mirror):
    """For the host's own tensors, which have values: what another rank broadcasts is what this one has there."""

    def broadcast(self, tensors: Any, opts: Any) -> collectives.Work:
        return collectives.Work(None, tensors, ())


class MirroredGloo(MirroredProcessGroup):
    """A group of the backend ``gloo`` alone, as torch makes it."""

    host = True

    def __init__(self, store: dist.Store, rank: int, size: int, timeout: timedelta = timedelta(minutes=10)) -> None:
        options = ProcessGroupNCCL.Options()
        options._timeout = timeout
        super().__init__(store, rank, size, options)

    def getBackendName(self) -> str:  # noqa: N802 - torch's name
        return "gloo"

    name = getBackendName

    def _issue(self, kernel: str, *_: Any, **__: Any) -> Any:
        raise RuntimeError(f"streamrace: {kernel} of the device's tensors over gloo cannot be simulated: use nccl")

    def barrier(self, opts: Any = None) -> Any:
        return collectives.Work(None, (), ())


class _Alone(dist.ProcessGroupGloo):
    """What torch makes beside nccl's group for the host's tensors, and lets go again: nccl's has them too."""

    def __init__(self, store: dist.Store, rank: int, size: int, timeout: timedelta) -> None:
        super().__init__(dist.HashStore(), 0, 1, timeout=timeout)


_heard: list[Heard] = []


def install(heard: Heard | None = None) -> None:
    """Let groups be made without anybody to meet. ``heard``: see :func:`streamrace.device.dry.install`."""
    _heard[:] = [] if heard is None else [heard]
    from torch.distributed import distributed_c10d as c10d

    module: Any = c10d
    made = module._new_process_group_helper

    def new_group(size: int, rank: int, ranks: Any, backend: Any, *args: Any, **kwargs: Any) -> Any:
        devices = c10d.BackendConfig(c10d.Backend(backend)).get_device_backend_map()
        alone = c10d.Backend.NCCL not in devices.values()
        module.ProcessGroupGloo = MirroredGloo if alone else _Alone
        return made(size, rank, ranks, backend, *args, **kwargs)

    place: Any
    for place in (c10d, dist, torch._C._distributed_c10d):
        place.ProcessGroupNCCL = MirroredProcessGroup
    module._new_process_group_helper = new_group
    module.rendezvous = _rendezvous
    module._store_based_barrier = lambda *_, **__: None


def _rendezvous(url: str, rank: int = -1, world_size: int = -1, **_: Any) -> Iterator[tuple[dist.Store, int, int]]:
    world, me = dry._world[0].ranks, dry._world[0].rank
    if rank not in (-1, me) or world_size not in (-1, world):
        raise RuntimeError(
            f"streamrace: this is a dry run as rank {me} of {world}, and the program makes it rank {rank} of "
            f"{world_size}: take both from the environment (RANK, WORLD_SIZE)"
        )
    yield dist.HashStore(), me, world


def _values(job: CollectiveCall) -> list[Tensor] | None:
    """What is written. None: that is not known."""
    if not dry.may_have_values(sum(one.nbytes for one in (*job.reads, *job.writes))):
        return None
    with torch.inference_mode(), unseen():
        outputs = [torch.empty(one.numel(), dtype=one.dtype, device="cpu") for one in job.writes]
        try:
            transfer = job.move([_alias(one).clone() for one in job.reads], outputs)
        except Elsewhere:
            return None
        if transfer is not None:
            transfer.wait()
    return outputs


def _broadcast(job: CollectiveCall, *, sends: bool) -> list[Tensor] | None:
    """What is written: rank 0 says what it sends where that is known, and who receives it is given that."""
    if not sends:
        told = _heard[0].told(job.group, job.number)
        if told is None or len(told) != len(job.writes):
            return None
        return [_host(data, one.dtype) for data, one in zip(told, job.writes, strict=True)]
    if dry.may_have_values(sum(one.nbytes for one in job.reads)) and all(map(torch.ops.simgpu.known, job.reads)):
        with torch.inference_mode(), unseen():
            sent = [bytes(_alias(one).clone().view(torch.uint8).numpy()) for one in job.reads]
        _heard[0].tell(job.group, job.number, sent)
    return None


def _host(data: bytes, dtype: torch.dtype) -> Tensor:
    with torch.device("cpu"):  # the program may have set another one
        return torch.frombuffer(bytearray(data), dtype=dtype) if data else torch.empty(0, dtype=dtype)


def _alias(tensor: Tensor) -> Tensor:
    return flat(work.alias(tensor))
