"""Implements the backend ``nccl`` of ``torch.distributed`` on the simulated GPU.

torch's own code creates this group in place of its ``ProcessGroupNCCL``: for ``init_process_group("nccl")``,
``"cpu:gloo,cuda:nccl"`` or no backend. :mod:`streamrace.device.collectives` decides when and on which stream
collectives run, and their cost.

A group that also has a backend for the CPU passes that work to gloo. Two ranks that send form a group of their own with
a stream for each direction, so two ranks that both send first do not wait for each other; NCCL has one stream for both
and relies on buffers there. As in NCCL, a message's tag is ignored.
"""

# torch's stubs give most of these methods overloads that the compiled class has under other names.
# mypy: disable-error-code="override, assignment"

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C import _distributed_c10d as c10d
from torch.utils._python_dispatch import _disable_current_modes

from streamrace.device import collectives, streams, versions
from streamrace.device.batch import Batch
from streamrace.device.collectives import CollectiveCall, Work, check
from streamrace.device.communicators import Communicators
from streamrace.device.reductions import Reduction
from streamrace.device.refusals import refusal

_TIMEOUT = timedelta(minutes=10)


class _Options:
    """Simulates ``ProcessGroupNCCL.Options``."""

    def __init__(self, is_high_priority_stream: bool = False) -> None:
        self.is_high_priority_stream = is_high_priority_stream
        self.global_ranks_in_group: list[int] = []
        self.group_name = ""
        self._timeout = _TIMEOUT


class ProcessGroupNCCL(dist.ProcessGroup):
    """A process group as one of its ranks has it. ``host``: the group also has gloo for tensors on the CPU."""

    Options: Any = _Options
    host = False  # set while torch creates a group, see streamrace.device.c10d
    supports_splitting = supports_coalescing = supports_time_estimate = supports_shrinking = False

    def __init__(self, store: dist.Store, rank: int, size: int, options: _Options, device: Any = None) -> None:
        super().__init__(rank, size)  # type: ignore[call-arg]
        self.options = options
        self._ranks = tuple(options.global_ranks_in_group) or tuple(range(size))
        urgent = options.is_high_priority_stream
        self._communicators = Communicators(options.group_name, self._ranks, urgent=urgent)
        self.rename = self._communicators.rename
        self._batch: Batch | None = None
        self._carrier, self._gloo, registered = self._meet(store)
        # torch keeps a group's name with its backends. No backend is registered for the device: torch refuses the
        # methods that this class does not override.
        self._register_backend(torch.device("cpu"), dist.ProcessGroup.BackendType.GLOO, registered)

    def _meet(self, store: dist.Store) -> tuple[Any, Any, Any]:
        """Meet the other ranks; return the group for the device's values, for the host's or None, and torch's own."""
        rank, size = self.rank(), self.size()
        collectives.meet(dist.PrefixStore("simgpu", store), self._ranks[rank], self._ranks)
        carrier = _gloo(dist.PrefixStore("carrier", store), rank, size, self.options)
        host = _gloo(dist.PrefixStore("host", store), rank, size, self.options) if self.host else None
        connected(store, rank, range(size))
        return carrier, host, host or carrier

    def _give(self, job: CollectiveCall, stream: torch.Stream) -> None:
        collectives.issue(job, stream=stream)

    # -- collectives ---------------------------------------------------------------------------

    def allreduce(self, tensors: Any, opts: Any = None) -> Any:
        opts = opts or c10d.AllreduceOptions()
        if gloo := self._host_group(tensors):
            return gloo.allreduce(tensors, opts)
        sums = Reduction(opts.reduceOp, tensors[0].dtype)

        def move(ins: list[Tensor], outs: list[Tensor]) -> Any:
            return sums.all_reduce(self._carrier, ins[0], outs[0])

        works = [self._issue("all_reduce", [t], [t], move, opts, sums=sums, result=[t]) for t in tensors]
        return _together(works)

    def allreduce_coalesced(self, tensors: Any, opts: Any = None) -> Any:
        plain = c10d.AllreduceOptions()
        if opts is not None:
            plain.reduceOp, plain.asyncOp, plain.timeout = opts.reduceOp, opts.asyncOp, opts.timeout
        return _together([self.allreduce([tensor], plain) for tensor in tensors])

    def broadcast(self, tensors: Any, opts: Any = None) -> Any:
        opts = opts or c10d.BroadcastOptions()
        if gloo := self._host_group(tensors):
            return gloo.broadcast(tensors, opts)
        sends = opts.rootRank == self.rank()
        to = c10d.BroadcastOptions()
        to.rootRank = opts.rootRank

        def move(ins: list[Tensor], outs: list[Tensor]) -> Any:
            return self._carrier.broadcast([_bytes(tensor) for tensor in ins or outs], to)

        read, written = (tensors, []) if sends else ([], tensors)
        return self._issue("broadcast", read, written, move, opts, root=opts.rootRank, result=tensors)

    def reduce(self, tensors: Any, opts: Any = None) -> Any:
        opts = opts or c10d.ReduceOptions()
        if gloo := self._host_group(tensors):
            return gloo.reduce(tensors, opts)
        receives = opts.rootRank == self.rank()
        sums = Reduction(opts.reduceOp, tensors[0].dtype)

        def move(ins: list[Tensor], outs: list[Tensor]) -> Any:
            return sums.reduce(self._carrier, ins[0], outs[0] if outs else torch.empty_like(ins[0]), opts.rootRank)

        written = tensors if receives else []
        return self._issue("reduce", tensors, written, move, opts, root=opts.rootRank, sums=sums, result=tensors)

    def all_gather_single(self, output: Tensor, input: Tensor, opts: Any = None) -> Any:  # noqa: A002
        opts = opts or c10d.AllgatherOptions()
        if gloo := self._host_group([output, input]):
            return gloo._allgather_base(output, input, opts)
        self._same(input, output, input.numel() * self.size() == output.numel(), "all-gather")

        def move(ins: list[Tensor], outs: list[Tensor]) -> Any:
            return self._carrier._allgather_base(_bytes(outs[0]), _bytes(ins[0]), c10d.AllgatherOptions())

        return self._issue("all_gather", [input], [output], move, opts, result=[output])

    def allgather(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        opts = opts or c10d.AllgatherOptions()
        if gloo := self._host_group(inputs):
            return gloo.allgather(outputs, inputs, opts)
        if len({tensor.numel() for tensor in outputs[0]}) > 1:
            refusal("an all_gather of parts of different sizes", "broadcast each")()

        def move(ins: list[Tensor], outs: list[Tensor]) -> Any:
            return self._carrier.allgather([[_bytes(t) for t in outs]], [_bytes(ins[0])], c10d.AllgatherOptions())

        return self._issue("all_gather", inputs, outputs[0], move, opts, result=outputs[0])

    def all_gather_single_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        return _together([self.all_gather_single(*pair, opts) for pair in zip(outputs, inputs, strict=True)])

    def reduce_scatter_single(self, output: Tensor, input: Tensor, opts: Any = None) -> Any:  # noqa: A002
        opts = opts or c10d.ReduceScatterOptions()
        if gloo := self._host_group([output, input]):
            return gloo._reduce_scatter_base(output, input, opts)
        self._same(input, output, input.numel() == output.numel() * self.size(), "reduce-scatter")
        sums = Reduction(opts.reduceOp, input.dtype)

        def move(ins: list[Tensor], outs: list[Tensor]) -> Any:
            return sums.reduce_scatter(self._carrier, ins, outs[0])

        return self._issue("reduce_scatter", [input], [output], move, opts, sums=sums, result=[output])

    def reduce_scatter(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        opts = opts or c10d.ReduceScatterOptions()
        if gloo := self._host_group(outputs):
            return gloo.reduce_scatter(outputs, inputs, opts)
        if len({tensor.numel() for tensor in inputs[0]}) > 1:
            refusal(
                "a reduce_scatter of parts of different sizes", "all-reduce the parts together, and take one's own"
            )()
        sums = Reduction(opts.reduceOp, outputs[0].dtype)

        def move(ins: list[Tensor], outs: list[Tensor]) -> Any:
            return sums.reduce_scatter(self._carrier, ins, outs[0])

        return self._issue("reduce_scatter", inputs[0], outputs, move, opts, sums=sums, result=outputs)

    def reduce_scatter_single_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        return _together([self.reduce_scatter_single(*pair, opts) for pair in zip(outputs, inputs, strict=True)])

    def gather(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        if gloo := self._host_group(inputs):
            return gloo.gather(outputs, inputs, opts)
        to = c10d.GatherOptions()
        to.rootRank = opts.rootRank

        def move(ins: list[Tensor], outs: list[Tensor]) -> Any:
            return self._carrier.gather([[_bytes(tensor) for tensor in outs]] if outs else [], [_bytes(ins[0])], to)

        into, total = outputs[0] if outputs else [], inputs[0].nbytes * self.size()
        return self._issue("gather", inputs, into, move, opts, root=opts.rootRank, nbytes=total, result=into)

    def scatter(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        if gloo := self._host_group(outputs):
            return gloo.scatter(outputs, inputs, opts)
        to = c10d.ScatterOptions()
        to.rootRank = opts.rootRank

        def move(ins: list[Tensor], outs: list[Tensor]) -> Any:
            return self._carrier.scatter([_bytes(outs[0])], [[_bytes(tensor) for tensor in ins]] if ins else [], to)

        parts, total = inputs[0] if inputs else [], outputs[0].nbytes * self.size()
        return self._issue("scatter", parts, outputs, move, opts, root=opts.rootRank, nbytes=total, result=outputs)

    def all_to_all_single(self, output: Tensor, input: Tensor, out: Any, into: Any, opts: Any = None) -> Any:  # noqa: A002
        opts = opts or c10d.AllToAllOptions()
        if gloo := self._host_group([output, input]):
            return gloo.alltoall_base(output, input, out, into, opts)
        out, into = ([rows * _row_bytes(t) for rows in splits] for splits, t in ((out, output), (into, input)))

        def move(ins: list[Tensor], outs: list[Tensor]) -> Any:
            return self._carrier.alltoall_base(_bytes(outs[0]), _bytes(ins[0]), out, into, c10d.AllToAllOptions())

        splits = (tuple(out), tuple(into))
        return self._issue("all_to_all", [input], [output], move, opts, splits=splits, result=[output])

    def alltoall(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        opts = opts or c10d.AllToAllOptions()
        if gloo := self._host_group(outputs):
            return gloo.alltoall(outputs, inputs, opts)
        out, into = [tensor.nbytes for tensor in outputs], [tensor.nbytes for tensor in inputs]

        def move(ins: list[Tensor], outs: list[Tensor]) -> Any:
            source, received = torch.cat([_bytes(tensor) for tensor in ins]), torch.empty(sum(out), dtype=torch.uint8)
            transfer = self._carrier.alltoall_base(received, source, out, into, c10d.AllToAllOptions())
            transfer.wait()
            for output, part in zip(outs, received.split(out), strict=True):
                _bytes(output).copy_(part)

        splits = (tuple(out), tuple(into))
        return self._issue("all_to_all", inputs, outputs, move, opts, splits=splits, result=outputs)

    def barrier(self, opts: Any = None) -> Any:
        """Issue NCCL's barrier: an all-reduce of one element, whose wait blocks the host."""
        with _disable_current_modes():  # a mode must see a barrier on a GPU, not an all-reduce
            work = self.allreduce([torch.zeros(1, device="cuda")])
        work._blocks = True
        if opts is None or opts.asyncOp:
            return work
        work.wait()
        return Work(None, (), ())

    # -- point to point -------------------------------------------------------------------------

    def send(self, tensors: Any, dst: int, tag: int = 0) -> Any:
        if gloo := self._host_group(tensors):
            return gloo.send(tensors, dst, tag)
        return self._between("send", tensors, self.rank(), dst, lambda ins, _: self._carrier.send(ins, dst, 0))

    def recv(self, tensors: Any, src: int, tag: int = 0) -> Any:
        if gloo := self._host_group(tensors):
            return gloo.recv(tensors, src, tag)
        return self._between("recv", tensors, src, self.rank(), lambda _, outs: self._carrier.recv(outs, src, 0))

    def recv_anysource(self, tensors: Any, tag: int = 0) -> Any:
        if gloo := self._host_group(tensors):
            return gloo.recv_anysource(tensors, tag)
        refusal("a receive from any rank", "NCCL has none either")()

    def _start_coalescing(self, device: torch.device) -> None:
        self._batch = Batch()

    def _end_coalescing(self, device: torch.device) -> Work:
        batch, self._batch = self._batch or Batch(), None
        with streams.on(device):
            return batch.run(self._communicators.stream)

    def _between(self, kernel: str, tensors: list[Tensor], src: int, dst: int, move: collectives.Move) -> Work:
        if src == dst:
            refusal("a rank that sends to itself", "copy the tensor")()
        check(*tensors)
        reads, writes = (tensors, []) if kernel == "send" else ([], tensors)
        with streams.on(tensors[0].device):
            pair, group, link, stream = self._communicators.direction(src, dst)

            def launch(behind: torch.Stream, joined: bool = False) -> torch.Stream:
                stream.come_behind(behind)
                number = self._communicators.next_number(group)
                job = CollectiveCall(
                    kernel, reads, writes, move, pair, group, number,
                    root=pair[0], link=link, origin=self._ranks, joined=joined,
                    next_number=lambda: self._communicators.next_number(group),
                )  # fmt: skip
                self._give(job, stream)
                return stream

            if self._batch is not None:
                self._batch.add(launch, reads, writes, asynchronous=True)
                return Work(None, tensors, ())
            launch(streams.current())
            return Work(stream.record_event(), tensors, tensors, stream=stream)

    # -- issuing work ---------------------------------------------------------------------------

    def _issue(
        self, kernel: str, reads: Any, writes: Any, move: collectives.Move, opts: Any, *,
        root: int = -1, nbytes: int = 0, result: Sequence[Tensor] = (), sums: Reduction | None = None,
        splits: tuple[tuple[int, ...], tuple[int, ...]] | None = None,
    ) -> Work:  # fmt: skip
        check(*reads, *writes)
        reduction, scale = sums.described(self._carrier) if sums is not None else ("", None)
        tensors = [*reads, *writes]
        with streams.on(tensors[0].device):
            group = self._communicators.here()
            job = CollectiveCall(
                kernel, reads, writes, move, self._ranks, group, self._communicators.next_number(group),
                root=self._ranks[root] if root >= 0 else -1, nbytes=nbytes, link=self._communicators.link,
                reduction=reduction, scale=scale, splits=splits, op=sums.name if sums is not None else "",
                next_number=lambda: self._communicators.next_number(group),
            )  # fmt: skip
            current, at_once = streams.current(), versions.on_current_stream(opts)

            def launch(stream: torch.Stream, joined: bool = False) -> torch.Stream:
                job.joined = joined
                self._give(job, stream)
                if not at_once:
                    versions.record(opts, tensors, stream)
                return stream

            if self._batch is not None:
                self._batch.add(launch, reads, writes, asynchronous=not at_once)
                return Work(None, result, ())
            if at_once:
                launch(current)
                return Work(None, result, ())
            stream = self._communicators.stream()
            stream.come_behind(current)
            launch(stream)
            return Work(stream.record_event(), result, tensors, stream=stream)

    def _host_group(self, tensors: Sequence[Tensor]) -> Any:
        """Return gloo if the tensors are the host's and the group has a backend for them, else None."""
        if not tensors or not tensors[0].is_cpu or self._gloo is None:
            return None
        collectives.drain()  # the host will wait for other ranks, whose devices may wait for this rank's
        return self._gloo

    def _same(self, first: Tensor, second: Tensor, fits: bool, what: str) -> None:
        if first.dtype != second.dtype:
            raise ValueError("output tensor must have the same type as input tensor")
        if not fits:
            raise ValueError(f"{what}: {list(first.shape)} and {list(second.shape)} do not fit {self.size()} ranks")

    # -- methods that torch calls on a backend ----------------------------------------------------

    all_gather_into_tensor = _allgather_base = all_gather_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced
    _reduce_scatter_base = reduce_scatter_single
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced
    alltoall_base = all_to_all_single

    def getBackendName(self) -> str:  # noqa: N802 - torch's name
        return "nccl"

    def name(self) -> str:
        return "nccl"

    def _get_backend(self, device: torch.device) -> Any:
        if device.type == "cuda":
            return self
        if device.type == "cpu" and self._gloo is not None:
            return self._gloo
        raise RuntimeError(f"No backend type associated with device type {device.type}")

    @property
    def _device_types(self) -> list[torch.device]:
        return [torch.device("cuda")] if self._gloo is None else [torch.device("cpu"), torch.device("cuda")]

    @property
    def uid(self) -> int:
        return self._communicators.group

    def eager_connect_single_device(self, device: torch.device) -> None:
        self._communicators.stream()

    def supports_tensor_alloc(self, device: torch.device) -> bool:
        return False

    def _set_default_timeout(self, timeout: timedelta) -> None:
        self.options._timeout = timeout

    _add_ephemeral_timeout = _set_default_timeout

    def _group_start(self) -> None:
        pass

    _group_end = _set_sequence_number_for_group = _group_start

    def shutdown(self) -> None:
        collectives.drain(unless_broken=True)

    def abort(self) -> None:
        pass

    def monitored_barrier(self, *_: Any, **__: Any) -> None:
        refusal("monitored_barrier", "NCCL has none either")()


def connected(store: dist.Store, me: int, members: Iterable[int]) -> None:
    """Wait until all members of a group are connected: one that has nothing more to do may end at once afterwards."""
    store.set(f"simgpu connected {me}", "")
    with suppress(RuntimeError):  # the store's rank has ended: it waited for all
        store.wait([f"simgpu connected {other}" for other in members])


def _gloo(store: dist.Store, rank: int, size: int, options: _Options) -> Any:
    kind: Any = dist.ProcessGroupGloo
    how = kind._Options()
    how._devices = [kind.create_device(hostname="127.0.0.1")]
    how._timeout = options._timeout
    return kind(store, rank, size, how)


def _bytes(tensor: Tensor) -> Tensor:
    return tensor.view(torch.uint8) if tensor.numel() else torch.empty(0, dtype=torch.uint8)


def _row_bytes(tensor: Tensor) -> int:
    return tensor.nbytes // tensor.shape[0] if tensor.dim() and tensor.shape[0] else tensor.itemsize


def _together(works: list[Any]) -> Any:
    """Merge collectives issued as one: waiting for the last waits for all, as they share a stream."""
    last = works[-1]
    if isinstance(last, Work):
        last._result = [tensor for work in works for tensor in work._result]
        last._held = [tensor for work in works for tensor in work._held]
    return last
