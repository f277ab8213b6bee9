"""A ``torch.distributed`` backend with NCCL's stream semantics; gloo carries the bytes.

Each process group has a stream of its own. A collective first waits for the issuing stream;
``Work.wait()`` makes the *current stream* wait, never the host (``ProcessGroupNCCL.cpp``:
``syncStreams``, ``WorkNCCL::synchronizeStream``). Inputs are read when it starts, outputs written when
it ends. Until somebody waits, the work holds its tensors, as NCCL's does
(``stashed_for_allocator_safety_``).

The values come from gloo, called with the very arguments that the program gave, so the order of sums
is that of the same program on plain gloo. A rank starts gloo's part when the collective's start takes
effect and waits for it at its end; before it blocks, it promises the others not to arrive anywhere
earlier, so nobody waits in a circle.

Departure from hardware: every collective waits for all its ranks, a broadcast too.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C import _distributed_c10d as c10d

from repro.accelerator.device import Device, Event, Stream, active
from repro.accelerator.memory import Block
from repro.accelerator.timeline import CollectiveWork, Effect
from repro.trace import Access, Group

BACKEND = "simulated"
_PATIENCE = 50  # looks at a transfer before this rank blocks for it
Call = Callable[[list[Tensor], list[Tensor]], Any]
InPlace = Callable[[list[Tensor]], Any]


class Work(dist.Work):
    """A collective that was issued."""

    def __init__(self, device: Device, event: Event, tensors: Sequence[Tensor], *, blocks_host: bool = False) -> None:
        super().__init__()
        self._device = device
        self._event = event
        self._tensors: Sequence[Tensor] = tensors
        self._blocks_host = blocks_host
        device.unwaited[self] = None

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        """Make the current stream wait. Only a barrier's wait blocks the host."""
        device = self._device
        stack = device.sites.capture()
        stream = device.current_stream()
        if not device.ruled("work.wait", stack, stream):
            device.wait(stream, self._event, stack)
            if self._blocks_host:
                device.host_wait(self._event, "synchronize", stack)
        self.release()
        device.unwaited.pop(self, None)
        return True

    def take_over(self, other: Work) -> None:
        """Hold ``other``'s tensors as well, until somebody waits for this one."""
        self._tensors = [*self._tensors, *other._tensors]
        other.release()
        self._device.unwaited.pop(other, None)

    def release(self) -> None:
        """Let go of the tensors."""
        self._tensors = ()

    def is_completed(self) -> bool:
        return self._device.query(self._event)

    def synchronize(self) -> None:
        self.wait()

    def result(self) -> list[Tensor]:
        return list(self._tensors)


@dataclass
class Carried:
    """One collective's part in moving values. ``read`` and ``write``: what it does when it starts and ends."""

    kernel: str
    root: int
    members: tuple[int, ...]
    reduction: str
    read: Effect | None = None
    write: Effect | None = None
    work: CollectiveWork | None = None


class SimulatedProcessGroup(dist.ProcessGroup):
    """One process group of one rank."""

    def __init__(
        self,
        device: Device,
        store: dist.Store,
        rank: int,
        size: int,
        timeout: timedelta,
        name: str,
        ranks: tuple[int, ...],
    ) -> None:
        super().__init__(rank, size)  # type: ignore[call-arg]
        self._device = device
        self._ranks = ranks
        self._name = name
        self._group = _group_id(f"{name}:{ranks}")
        self._numbers: dict[int, int] = {}
        self._directions: dict[int, Stream] = {}
        self.stream = Stream(device)
        self.stream.rename(f"nccl {','.join(map(str, ranks))}")
        device.journal.note(Group(self._group, ranks))
        self._gloo = self._carrier(store, timeout)

    def _carrier(self, store: dist.Store, timeout: timedelta) -> dist.ProcessGroup:
        """What moves the values: gloo."""
        rank, size = self.rank(), self.size()
        gloo = dist.ProcessGroupGloo(dist.PrefixStore("gloo", store), rank, size, timeout)
        carrier = dist.ProcessGroup(dist.PrefixStore("group", store), rank, size)
        carrier._set_group_name(f"gloo-{self._name}")  # type: ignore[arg-type]
        carrier._register_backend(torch.device("cpu"), dist.ProcessGroup.BackendType.GLOO, gloo)
        carrier._set_default_backend(dist.ProcessGroup.BackendType.GLOO)
        return carrier

    # -- what torch.distributed calls ---------------------------------------------------------------

    def allreduce(self, tensors: Any, opts: Any = None) -> Work:
        opts = opts or c10d.AllreduceOptions()
        return self._in_place(
            "all_reduce", tensors, lambda values: self._gloo.allreduce(values, opts), reduction=_reduction(opts)
        )

    def allreduce_coalesced(self, tensors: Any, opts: Any = None) -> Work:
        return _last([self.allreduce([tensor], opts) for tensor in tensors])

    def broadcast(self, tensors: Any, opts: Any = None) -> Work:
        root = self._ranks[opts.rootRank]
        return self._in_place("broadcast", tensors, lambda values: self._gloo.broadcast(values, opts), root)

    def reduce(self, tensors: Any, opts: Any = None) -> Work:
        root = self._ranks[opts.rootRank]
        return self._in_place(
            "reduce", tensors, lambda values: self._gloo.reduce(values, opts), root, reduction=_reduction(opts)
        )

    def all_gather_single(self, output: Tensor, input: Tensor, opts: Any = None) -> Work:  # noqa: A002
        opts = opts or c10d.AllgatherOptions()
        return self._issue(
            "all_gather", [input], [output], lambda ins, outs: self._gloo.all_gather_single(outs[0], ins[0], opts)
        )

    def _allgather_base(self, output: Tensor, input: Tensor, opts: Any = None) -> Work:  # noqa: A002
        return self.all_gather_single(output, input, opts)

    def all_gather_single_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> Work:
        return _last([self.all_gather_single(*pair, opts) for pair in zip(outputs, inputs, strict=True)])

    def allgather_into_tensor_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> Work:
        return self.all_gather_single_coalesced(outputs, inputs, opts)

    def allgather(self, outputs: Any, inputs: Any, opts: Any = None) -> Work:
        opts = opts or c10d.AllgatherOptions()
        return self._issue("all_gather", inputs, outputs[0], lambda ins, outs: self._gloo.allgather([outs], ins, opts))

    def reduce_scatter_single(self, output: Tensor, input: Tensor, opts: Any = None) -> Work:  # noqa: A002
        opts = opts or c10d.ReduceScatterOptions()
        return self._issue(
            "reduce_scatter",
            [input],
            [output],
            lambda ins, outs: self._gloo.reduce_scatter_single(outs[0], ins[0], opts),
            reduction=_reduction(opts),
        )

    def _reduce_scatter_base(self, output: Tensor, input: Tensor, opts: Any = None) -> Work:  # noqa: A002
        return self.reduce_scatter_single(output, input, opts)

    def reduce_scatter_single_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> Work:
        return _last([self.reduce_scatter_single(*pair, opts) for pair in zip(outputs, inputs, strict=True)])

    def reduce_scatter_tensor_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> Work:
        return self.reduce_scatter_single_coalesced(outputs, inputs, opts)

    def reduce_scatter(self, outputs: Any, inputs: Any, opts: Any = None) -> Work:
        opts = opts or c10d.ReduceScatterOptions()
        return self._issue(
            "reduce_scatter",
            inputs[0],
            outputs,
            lambda ins, outs: self._gloo.reduce_scatter(outs, [ins], opts),
            reduction=_reduction(opts),
        )

    def gather(self, outputs: Any, inputs: Any, opts: Any = None) -> Work:
        receives = bool(outputs)
        return self._issue(
            "gather",
            inputs,
            outputs[0] if outputs else [],
            lambda ins, outs: self._gloo.gather([outs] if receives else [], ins, opts),
            self._ranks[opts.rootRank],
            nbytes=inputs[0].nbytes * self.size(),
        )

    def scatter(self, outputs: Any, inputs: Any, opts: Any = None) -> Work:
        sends = bool(inputs)
        return self._issue(
            "scatter",
            inputs[0] if inputs else [],
            outputs,
            lambda ins, outs: self._gloo.scatter(outs, [ins] if sends else [], opts),
            self._ranks[opts.rootRank],
            nbytes=outputs[0].nbytes * self.size(),
        )

    def alltoall_base(self, output: Tensor, input: Tensor, outs: Any, ins: Any, opts: Any = None) -> Work:  # noqa: A002
        opts = opts or c10d.AllToAllOptions()
        return self._issue(
            "all_to_all",
            [input],
            [output],
            lambda read, written: self._gloo.alltoall_base(written[0], read[0], outs, ins, opts),
            splits=(outs, ins) if outs or ins else None,
        )

    def all_to_all_single(self, output: Tensor, input: Tensor, outs: Any, ins: Any, opts: Any = None) -> Work:  # noqa: A002
        return self.alltoall_base(output, input, outs, ins, opts)

    def send(self, tensors: Any, dst: int, tag: int) -> Work:
        return self._between("send", tensors, self.rank(), dst, lambda values: self._gloo.send(values, dst, tag))

    def recv(self, tensors: Any, src: int, tag: int) -> Work:
        return self._between("recv", tensors, src, self.rank(), lambda values: self._gloo.recv(values, src, tag))

    def barrier(self, opts: Any = None) -> Work:
        """NCCL's barrier is an all-reduce of one element, and its wait blocks the host."""
        with self._device.quiet():
            token = torch.zeros(1)
        work = self.allreduce([token])
        work._blocks_host = True
        return work

    def getBackendName(self) -> str:  # noqa: N802 - torch's name
        return BACKEND

    @property
    def group_name(self) -> str:
        """By which a DeviceMesh finds the group again: torch asks a backend within, and there is none."""
        return self._name

    # -- issuing --------------------------------------------------------------------------------------

    def _in_place(
        self, kernel: str, tensors: list[Tensor], call: InPlace, root: int = -1, *, reduction: str = ""
    ) -> Work:
        def exchange(inputs: list[Tensor], outputs: list[Tensor]) -> Any:
            for value, start in zip(outputs, inputs, strict=True):
                value.copy_(start)
            return call(outputs)

        return self._issue(kernel, tensors, tensors, exchange, root, reduction=reduction)

    def _between(self, kernel: str, tensors: list[Tensor], src: int, dst: int, call: InPlace) -> Work:
        """Point to point: the two ranks are a group of their own, with a stream, in the order of their sends.

        NCCL has a stream for each pair of ranks. Here it is one for each direction: two ranks that both
        send first would wait for each other for ever, unless they batched it, and batches come here one by one.
        """
        pair = (self._ranks[src], self._ranks[dst])
        group = _group_id(f"{self._name}:{self._ranks}:{src}>{dst}")
        stream = self._directions.get(group)
        if stream is None:
            stream = self._directions[group] = Stream(self._device)
            stream.rename(f"nccl {pair[0]}>{pair[1]}")
            self._device.journal.note(Group(group, pair, self._ranks))
        reads, writes = (tensors, []) if kernel == "send" else ([], tensors)
        return self._issue(
            kernel,
            reads,
            writes,
            lambda ins, outs: call(ins or outs),
            pair[0],
            group=group,
            members=pair,
            origin=self._ranks,
            stream=stream,
        )

    def _issue(
        self,
        kernel: str,
        inputs: Sequence[Tensor],
        outputs: Sequence[Tensor],
        call: Call,
        root: int = -1,
        *,
        group: int | None = None,
        members: tuple[int, ...] | None = None,
        origin: tuple[int, ...] = (),
        nbytes: int | None = None,
        stream: Stream | None = None,
        reduction: str = "",
        splits: tuple[Sequence[int], Sequence[int]] | None = None,
    ) -> Work:
        """``nbytes``: the whole of what is exchanged, where not every rank can see it in its own tensors."""
        group = self._group if group is None else group
        members = members or self._ranks
        stream = stream or self.stream
        number = self._numbers[group] = self._numbers.get(group, 0) + 1
        device, timeline = self._device, self._device.timeline
        with device.quiet():
            reads, read_from, used = self._capture(inputs)
            writes, write_to, also_used = self._capture(outputs)
            blocks = used + also_used
            if nbytes is None:
                nbytes = max(sum(t.nbytes for t in inputs), sum(t.nbytes for t in outputs))
            stack = device.sites.capture()
            issued_from = Event()
            device.record(issued_from, device.current_stream())
            device.wait(stream, issued_from, stack)
            device.use(blocks, stream.id)
            timeline.now += device.timing.launch_ns
            name = f"nccl::{kernel}"
            duration = device.timing.collective(name, nbytes, members, stream.name, group, number, origin=origin)
            late, long = device.timing.delays.get(device.journal.ops + 1, (0, 0))
            carried = self._carried(Carried(kernel, root, members, reduction), call, read_from, write_to, blocks)
            work = timeline.collective(
                stream.id,
                duration + long,
                late=late,
                read=carried.read,
                effect=carried.write,
                group=group,
                number=number,
                members=self._awaited(members),
            )
            carried.work = work
            device.journal.issued(work, stream.id, name, reads, writes, stack, nbytes, root, device.current)
            if device.recorder is not None:
                device.recorder.transfer(inputs, outputs, reduction, splits)
        done = Event()
        device.record(done, stream)
        return Work(device, done, [*inputs, *outputs])

    def _awaited(self, members: tuple[int, ...]) -> tuple[int, ...]:
        """Whose arrival a collective waits for."""
        return members

    def _carried(
        self, carried: Carried, call: Call, read_from: list[Tensor], write_to: list[Tensor], blocks: list[Block]
    ) -> Carried:
        """Fill in what the collective does to memory when it starts and when it ends."""
        device = self._device
        state: dict[str, Any] = {}

        def read() -> None:
            values = [alias.clone(memory_format=torch.contiguous_format) for alias in read_from]
            state["out"] = [torch.empty(alias.shape, dtype=alias.dtype) for alias in write_to]
            state["in"] = values
            state["gloo"] = call(values, state["out"])

        def write() -> None:
            transfer = state["gloo"]
            if transfer is not None:
                patience = _PATIENCE
                while patience and not transfer.is_completed():
                    os.sched_yield()  # the others may be about to come; a promise would wake them all
                    patience -= 1
                if not patience:
                    assert carried.work is not None
                    device.exchange.promise(carried.work.end)
                transfer.wait()
            for alias, value in zip(write_to, state["out"], strict=True):
                alias.copy_(value)
            state.clear()

        carried.read, carried.write = read, write
        return carried

    def _capture(self, tensors: Sequence[Tensor]) -> tuple[list[Access], list[Tensor], list[Block]]:
        memory = self._device.memory
        accesses, aliases, blocks = [], [], []
        for tensor in tensors:
            block = memory.block_of(tensor)
            access = memory.access(tensor, block)
            if access is not None:
                accesses.append(access)
            aliases.append(memory.alias(tensor, block))
            blocks.append(block)
        return accesses, aliases, blocks


def _reduction(opts: Any) -> str:
    return str(opts.reduceOp.op).rpartition(".")[2] if hasattr(opts.reduceOp, "op") else str(opts.reduceOp)


def _last(works: list[Work]) -> Work:
    """Collectives issued as one: whoever waits for the last waits for all, as they share a stream."""
    last = works[-1]
    for work in works[:-1]:
        last.take_over(work)
    return last


def _group_id(name: str) -> int:
    """The same number for the same group on all its ranks."""
    return zlib.crc32(name.encode()) & 0x7FFFFFFF


def _create(options: Any, _: Any = None) -> SimulatedProcessGroup:
    ranks = tuple(options.global_ranks_in_group) or tuple(range(options.group_size))
    device = active()
    kind: type[SimulatedProcessGroup] = device.group_type or SimulatedProcessGroup
    return kind(device, options.store, options.group_rank, options.group_size, options.timeout, options.group_id, ranks)


def register() -> None:
    """Make ``backend="simulated"`` known to torch.distributed."""
    if not hasattr(dist.Backend, BACKEND.upper()):
        dist.Backend.register_backend(BACKEND, _create, extended_api=True, devices=["cpu"])
