"""Simulates the process groups of a dry run: the ranks that do not run are taken to do the same as one that does.

In data-parallel training all ranks run the same program on data of the same shape. So a collective starts when this
rank arrives. The other ranks' inputs are taken to equal this rank's where its values are known and small
(:mod:`.mirror`); objects are such bytes, so ``all_gather_object`` returns this rank's own object once for each rank.
Values that only another rank has, such as those it sends or broadcasts, are unknown; but the broadcasts of rank 0 in a
dry run of its own can be given to another rank (:mod:`.broadcast_cache`).

Several ranks of one dry run may run together (:class:`streamrace.device.dry.Together`), such as one of each stage of a
pipeline. A collective among them starts when the last of those that run arrives. Its results are unknown, but for
integers such as sizes and objects (:mod:`.shared`).

Departure from hardware: no rank that does not run is late, and none has other data.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from streamrace.device import collectives, dry, work
from streamrace.device.collectives import CollectiveCall, flat
from streamrace.device.dry.broadcast_cache import BroadcastCache
from streamrace.device.dry.mirror import Elsewhere, Mirror
from streamrace.device.dry.shared import SharedMirror
from streamrace.device.nccl import ProcessGroupNCCL, _gloo, connected
from streamrace.device.refusals import refusal
from streamrace.device.sanitizer import unseen


class _Part(NamedTuple):
    """This rank's part of a collective among ranks that run together."""

    job: CollectiveCall
    inputs: list[Tensor]
    known: bool


class MirroredProcessGroup(ProcessGroupNCCL):
    """A process group of which one rank runs, or several."""

    _parts: list[_Part] | None = None  # of a batch that is being issued

    def _meet(self, store: dist.Store) -> tuple[Any, Any, Any]:
        me, size = self.rank(), self.size()
        running = dry.running()
        self._running = tuple(rank for rank in self._ranks if rank in running)
        if len(self._running) > 1:
            to_others = dist.PrefixStore("simgpu", store)
            collectives.meet(to_others, self._ranks[me], self._running, on_demand=True)
            connected(store, self._ranks[me], self._running)
        alone = _gloo(dist.HashStore(), 0, 1, self.options)  # holds the group's name
        if len(self._running) < 2:
            return Mirror(me, size), _HostMirror(me, size) if self.host else None, alone
        carrier, host = (
            SharedMirror(me, self._ranks, self._running, dist.PrefixStore(name, store)) for name in ("carrier", "host")
        )
        return carrier, host if self.host else None, alone

    def _give(self, job: CollectiveCall, stream: torch.Stream) -> None:
        running = tuple(rank for rank in job.members if rank in self._running)
        if len(running) > 1:
            self._give_together(job, stream, running)
            return
        if job.kernel == "broadcast" and _heard:
            values = _broadcast(job, sends=job.root == self._ranks[self.rank()])
        else:
            values = _values(job) if _known(job) else None
        call = collectives.agreed_call(job)
        collectives.launch(job, stream=stream, members=(self._ranks[self.rank()],), call=call)
        _write(job, values)

    def _give_together(self, job: CollectiveCall, stream: torch.Stream, running: tuple[int, ...]) -> None:
        small = _small(job)
        part = _Part(job, _inputs(job) if small else [], known=_known(job))
        collectives.launch(job, stream=stream, members=running, call=collectives.announce(job, running))
        if small and self._parts is not None:
            self._parts.append(part)
        elif small:
            self._exchange(part)

    def _exchange(self, part: _Part) -> None:
        """Write the results of a collective, if all ranks that run know their parts. This rank waits for them."""
        if part.known:
            _write(part.job, _moved(part.job, part.inputs))
        elif part.job.kernel == "send":
            self._carrier.unknown_message(self._ranks.index(part.job.members[1]))
        else:
            self._carrier.unknown()

    def _end_coalescing(self, device: torch.device) -> Any:
        parts: list[_Part] = []
        self._parts = parts
        try:
            work = super()._end_coalescing(device)
        finally:
            self._parts = None
        for part in sorted(parts, key=lambda part: part.job.kernel != "send"):  # two ranks may wait for each other's
            self._exchange(part)
        return work


class _HostMirror(Mirror):
    """A mirror for the host's tensors, which have values: a broadcast from another rank leaves this rank's values."""

    def broadcast(self, tensors: Any, opts: Any) -> collectives.Work:
        return collectives.Work(None, tensors, ())


class MirroredGloo(MirroredProcessGroup):
    """A group of the backend ``gloo`` alone, as torch creates it."""

    host = True

    def __init__(self, store: dist.Store, rank: int, size: int, timeout: timedelta = timedelta(minutes=10)) -> None:
        options = ProcessGroupNCCL.Options()
        options._timeout = timeout
        super().__init__(store, rank, size, options)

    def getBackendName(self) -> str:  # noqa: N802 - torch's name
        return "gloo"

    name = getBackendName

    def _issue(self, kernel: str, *_: Any, **__: Any) -> Any:
        refusal(f"{kernel} of the device's tensors over gloo", "use nccl")()

    def barrier(self, opts: Any = None) -> Any:
        return collectives.Work(None, (), ())


class _Alone(dist.ProcessGroupGloo):
    """The gloo group that torch creates next to nccl's for the host's tensors. Unused: nccl's group handles them."""

    def __init__(self, store: dist.Store, rank: int, size: int, timeout: timedelta) -> None:
        super().__init__(dist.HashStore(), 0, 1, timeout=timeout)


_heard: list[BroadcastCache] = []


def install(heard: BroadcastCache | None = None) -> None:
    """Let groups be created without a rendezvous. ``heard``: see :func:`streamrace.device.dry.install`."""
    _heard[:] = [] if heard is None else [heard]
    from torch.distributed import distributed_c10d as c10d

    module: Any = c10d
    plain_new_group = module._new_process_group_helper

    def new_group(size: int, rank: int, ranks: Any, backend: Any, *args: Any, **kwargs: Any) -> Any:
        devices = c10d.BackendConfig(c10d.Backend(backend)).get_device_backend_map()
        alone = c10d.Backend.NCCL not in devices.values()
        module.ProcessGroupGloo = MirroredGloo if alone else _Alone
        return plain_new_group(size, rank, ranks, backend, *args, **kwargs)

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
    yield dry.store(), me, world


def _values(job: CollectiveCall) -> list[Tensor] | None:
    """Return the values that the collective writes, or None if they are unknown."""
    if not dry.may_have_values(sum(tensor.nbytes for tensor in (*job.reads, *job.writes))):
        return None
    return _moved(job, _inputs(job))


def _inputs(job: CollectiveCall) -> list[Tensor]:
    with torch.inference_mode(), unseen():
        return [_alias(tensor).clone() for tensor in job.reads]


def _write(job: CollectiveCall, values: list[Tensor] | None) -> None:
    for output, value in zip(job.writes, values or (), strict=False):
        with torch.inference_mode(), unseen():
            _alias(output).copy_(value)
            torch.ops.simgpu.wrote(output, True)


def _known(job: CollectiveCall) -> bool:
    return all(torch.ops.simgpu.known(tensor) for tensor in job.reads)


def _small(job: CollectiveCall) -> bool:
    """Check whether all ranks exchange the values: those of few integers."""
    nbytes = job.nbytes or max(sum(t.nbytes for t in job.reads), sum(t.nbytes for t in job.writes), 0)
    dtype = (job.reads or job.writes)[0].dtype
    return dry.may_have_values(nbytes) and not dtype.is_floating_point and not dtype.is_complex


def _moved(job: CollectiveCall, inputs: list[Tensor]) -> list[Tensor] | None:
    with torch.inference_mode(), unseen():
        outputs = [torch.empty(tensor.numel(), dtype=tensor.dtype, device="cpu") for tensor in job.writes]
        try:
            transfer = job.move(inputs, outputs)
        except Elsewhere:
            return None
        if transfer is not None:
            transfer.wait()
    return outputs


def _broadcast(job: CollectiveCall, *, sends: bool) -> list[Tensor] | None:
    """Return the received values, or None if unknown. As rank 0, write down what it sends if known, return None."""
    if not sends:
        received = _heard[0].values(job.group, job.number)
        if received is None or len(received) != len(job.writes):
            return None
        return [_host(data, output.dtype) for data, output in zip(received, job.writes, strict=True)]
    if dry.may_have_values(sum(tensor.nbytes for tensor in job.reads)) and all(map(torch.ops.simgpu.known, job.reads)):
        with torch.inference_mode(), unseen():
            sent = [bytes(_alias(tensor).clone().view(torch.uint8).numpy()) for tensor in job.reads]
        _heard[0].tell(job.group, job.number, sent)
    return None


def _host(data: bytes, dtype: torch.dtype) -> Tensor:
    with torch.device("cpu"):  # the program may have set another default device
        return torch.frombuffer(bytearray(data), dtype=dtype) if data else torch.empty(0, dtype=dtype)


def _alias(tensor: Tensor) -> Tensor:
    return flat(work.alias(tensor))
