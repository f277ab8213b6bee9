"""What every collective has in common: it is given to a stream, meets its members, and moves values.

As ProcessGroupNCCL does it since torch 2.8: with ``async_op`` it runs on the group's own stream, which first waits for
the current one, and holds its tensors until somebody waits; ``Work.wait()`` makes the current stream wait, never the
host. Without ``async_op`` it runs on the current stream itself. NCCL runs one communicator's kernels one after the
other, in the order of issue: that is so in virtual time, but it is no order on which a program may rely.

The values come from gloo, over this machine's loopback: a rank starts gloo's part where the collective's start takes
effect, and waits for it at its end. Inputs are read at the start, outputs written at the end.

Departures from hardware: every collective waits for all its ranks, a broadcast too; sums have gloo's order.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from streamrace.device import costs, recording, streams, tracing, unwritten, versions, work
from streamrace.device.library import functions
from streamrace.device.overrides import overridden, part
from streamrace.device.ranks import agreed
from streamrace.device.ranks.exchange import NEVER, PipeExchange
from streamrace.trace.records import Transfer

_PATIENCE = 50  # looks at a transfer before this rank blocks for it
Move = Callable[[list[Tensor], list[Tensor]], Any]
"""Starts the transfer: from copies of what is read, to memory for what is written. Gives gloo's work, or None."""

_exchange: list[PipeExchange] = []
_behind: dict[int, streams.Stream] = {}
_kept: set[Work] = set()
_unclaimed: dict[tuple[int, ...], dist.Store] = {}  # groups that had no collective yet


def meet(store: dist.Store, me: int, ranks: Sequence[int]) -> None:
    """Let this process's collectives meet those of the group's other ranks."""
    if not _exchange:
        _exchange.append(PipeExchange(me))
        work.use_exchange(_exchange[0], rank=me)
    _exchange[0].link(store, ranks)
    _unclaimed[tuple(ranks)] = store


def _claim_device(members: tuple[int, ...]) -> None:
    """Refuse two ranks on one GPU where NCCL does: when the group's first collective makes its communicator.

    Ranks that torchrun says are of different nodes (GROUP_RANK) have different GPUs. Raises RuntimeError.
    """
    store = _unclaimed.pop(members, None)
    if store is None:
        return
    index, me = functions().index(), str(_exchange[0].rank)
    first = store.compare_set(f"cuda:{index} of node {os.environ.get('GROUP_RANK', '0')}", "", me).decode()
    if first != me:
        raise RuntimeError(
            f"streamrace: ranks {first} and {me} both use cuda:{index}, and NCCL refuses two ranks on one GPU "
            '("Duplicate GPU detected"): '
            "each rank says torch.cuda.set_device(int(os.environ['LOCAL_RANK'])) before it uses it"
        )


def leave(*, done: bool = True) -> None:
    """The program is over. With ``done`` all its work is finished, and nobody needs to wait for this rank again.

    Raises RuntimeError where its collectives could not go on, whatever the program made of that.
    """
    if done:
        drain()
        if why := problem():
            raise RuntimeError(why)
        if _exchange:
            _exchange[0].promise(NEVER)


def drain(*, unless_broken: bool = False) -> None:
    """Let all work end. That takes the host's time, and orders nothing.

    ``unless_broken``: not where the collectives cannot go on, which was told when it was found.
    """
    if unless_broken and problem():
        return
    f = functions()
    if f.drain() < 0:
        raise RuntimeError(f.problem().decode())


def problem() -> str:
    """Why this process's collectives cannot go on. Empty: they can."""
    return _exchange[0].problem if _exchange else ""


def follows() -> bool:
    """Can they not go on because another rank has ended?"""
    return bool(_exchange) and _exchange[0].follows


@dataclass
class CollectiveCall:
    """One collective of one rank. ``root`` and ``members`` are global ranks; ``nbytes``: the whole of what moves.

    ``op``: the reduction as the program asked for it. ``reduction``, ``scale`` and ``splits`` are for a recording
    (:class:`streamrace.trace.records.Transfer`).
    ``link`` and ``origin``: see :class:`streamrace.device.costs.Meeting`.
    """

    kernel: str
    reads: Sequence[Tensor]
    writes: Sequence[Tensor]
    move: Move
    members: tuple[int, ...]
    group: int
    number: int
    root: int = -1
    nbytes: int = 0
    reduction: str = ""
    scale: float | None = None
    splits: tuple[tuple[int, ...], tuple[int, ...]] | None = None
    link: str = ""
    origin: tuple[int, ...] = ()
    op: str = ""


class Work(dist.Work):
    """A collective that was issued. ``event`` stands behind it on ``stream``; None: the current stream is its stream.

    Who drops it without a wait drops the tensors that it holds: their memory is handed out again when the collective is
    done, as NCCL's watchdog sees to it (ProcessGroupNCCL.cpp, TensorShelf).
    """

    def __init__(
        self, event: torch.Event | None, result: Sequence[Tensor], held: Sequence[Tensor], *,
        blocks: bool = False, stream: torch.Stream | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self._event = event
        self._result = list(result)
        self._held: Sequence[Tensor] = held
        self._blocks = blocks
        self._stream = stream

    def __del__(self) -> None:
        for tensor in self._held if self._stream is not None else ():
            part(tensor.record_stream, self._stream)

    def keep(self) -> None:
        """Live until somebody waits: torch's registry of functional collectives knows the compiled part alone."""
        _kept.add(self)

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        """Make the current stream wait. Only a barrier's wait blocks the host."""
        _kept.discard(self)
        current = streams.current()
        if (self._event is not None or self._blocks) and not overridden("work.wait", current):
            if self._event is not None:
                part(self._event.wait, current)
            if self._blocks:
                torch.Stream.synchronize(current)
        self._held = ()
        return True

    def synchronize(self) -> None:
        self.wait()

    def block_current_stream(self) -> None:
        self.wait()

    def is_completed(self) -> bool:
        return self._event is None or self._event.query()

    def is_success(self) -> bool:
        return True

    def result(self) -> list[Tensor]:
        return self._result

    def get_future(self) -> Any:
        """torch's own future: who waits for it makes the current stream wait, as in NCCL's."""
        made: Any = torch.futures.Future(devices=[torch.device("cuda", functions().index())])
        if self._event is None:
            made.set_result(self._result)
            return made
        # A stream of its own for each stream of collectives: its waits add no order, as they end there in turn.
        assert self._stream is not None
        if self._stream.stream_id not in _behind:
            _behind[self._stream.stream_id] = streams.hidden("nccl future")
        behind: Any = _behind[self._stream.stream_id]
        behind.wait_event(self._event)
        with torch.cuda.stream(behind):
            made.set_result(self._result)
        return made


def issue(job: CollectiveCall, *, stream: torch.Stream) -> None:
    """Give the collective to ``stream``."""
    _claim_device(job.members)
    said = _expect(job)
    read_from = [flat(work.alias(tensor)) for tensor in job.reads]
    write_to = [flat(work.alias(tensor)) for tensor in job.writes]
    looks = unwritten.taken(job.kernel, job.reads)
    state: list[Any] = []
    # not the job: its tensors would live until the collective has ended, in each timing another time
    members, move = job.members, job.move

    def read() -> None:
        with versions.of_gloo():
            outputs = [torch.empty_like(alias) for alias in write_to]
            inputs = [alias.clone() for alias in read_from]
            for look, alias in zip(looks, inputs, strict=False):
                look(alias)
            with _told(members, said):
                state.append((move(inputs, outputs), inputs, outputs))

    def write() -> None:
        transfer, _, outputs = state.pop()
        if transfer is not None:
            with _told(members, said):
                _wait(transfer)
        for alias, value in zip(write_to, outputs, strict=True):
            alias.copy_(value)

    launch(job, stream=stream, members=job.members, at_start=read, at_end=write)


def _expect(job: CollectiveCall) -> str:
    """Let the others know what this rank calls; gives it as text. Raises RuntimeError where theirs does not fit."""
    exchange, size = _exchange[0], len(job.members)
    if size == 1:
        return ""
    call = agreed.call(
        job.kernel, job.reads, job.writes, size=size, op=job.op, root=job.root, place=tracing.place(), splits=job.splits
    )
    exchange.expect(job.group, job.number, job.members, call)
    return str(call.to(0))


@contextmanager
def _told(members: tuple[int, ...], said: str) -> Iterator[None]:
    """What gloo says when a rank has ended, in our words: which one has, and what it was needed for."""
    try:
        yield
    except RuntimeError:
        if why := _exchange[0].lost(members, said):
            raise RuntimeError(why) from None
        raise


def launch(
    job: CollectiveCall, *, stream: torch.Stream, members: tuple[int, ...],
    at_start: work.Effect | None = None, at_end: work.Effect | None = None,
) -> None:  # fmt: skip
    """The collective as work of the device, which waits for ``members``."""
    now = costs.current()
    kernel = f"nccl::{job.kernel}"
    nbytes = job.nbytes or max(sum(t.nbytes for t in job.reads), sum(t.nbytes for t in job.writes), 0)
    meeting = costs.Meeting(job.members, job.link, job.origin)
    duration = now.collective(kernel, nbytes, meeting, stream.stream_id)
    number = work.launch(
        kernel,
        stream=stream.stream_id,
        duration=round(duration),
        reads=job.reads,
        writes=job.writes,
        at_start=at_start,
        at_end=at_end,
        rendezvous=work.Rendezvous(job.group, job.number, members, root=job.root, nominal=nbytes),
        issuer=functions().current_stream(),
    )
    alone = duration if not now.slow else replace(now, slow={}).collective(kernel, nbytes, meeting, stream.stream_id)
    tracing.took(number, alone, job.link)
    if tracing.recording():
        reads, writes = (tuple(recording.flat_view(one) for one in those) for those in (job.reads, job.writes))
        tracing.note(Transfer(number, reads, writes, job.reduction, job.splits, job.scale))


def _wait(transfer: Any) -> None:
    patience = _PATIENCE
    while patience and not transfer.is_completed():
        os.sched_yield()  # the others may be about to come; a promise would wake them all
        patience -= 1
    if not patience:
        # This rank is at the end of the transfer: whatever it has not come to yet starts later.
        _exchange[0].promise(functions().effective())
    transfer.wait()


def flat(tensor: Tensor) -> Tensor:
    """The same memory in one dimension."""
    return tensor.as_strided((tensor.numel(),), (1,))


def check(*tensors: Tensor) -> None:
    """What NCCL's group asks of tensors. Raises ValueError with its words."""
    for tensor in tensors:
        if not tensor.is_cuda:
            raise RuntimeError(f"No backend type associated with device type {tensor.device.type}")
        if not (
            tensor.is_contiguous() or (tensor.dim() == 4 and tensor.is_contiguous(memory_format=torch.channels_last))
        ):
            raise ValueError("Tensors must be contiguous")
