"""Issues collectives: the part common to all of them, which joins a stream, meets the members and moves values.

As in ProcessGroupNCCL since torch 2.8: with ``async_op`` a collective runs on the group's own stream, which first
waits for the current stream, and holds its tensors until a wait; ``Work.wait()`` makes the current stream wait, never
the host. Without ``async_op`` it runs on the current stream itself. NCCL runs one communicator's kernels one after the
other, in the order of issue: so does virtual time, but programs may not rely on this order.

The values are transferred by gloo, over this machine's loopback: a rank starts gloo's part when the collective's start
takes effect, and waits for it at the collective's end. Inputs are read at the start, outputs written at the end.

Departures from hardware: every collective, even a broadcast, waits for all its ranks; sums have gloo's order.
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

from streamrace.device import costs, recording, streams, tracing, uninitialised, versions, work
from streamrace.device.library import functions
from streamrace.device.overrides import overridden, part
from streamrace.device.ranks import mismatches
from streamrace.device.ranks.exchange import NEVER, PipeExchange
from streamrace.trace.calls import AgreedCall
from streamrace.trace.records import Transfer

_PATIENCE = 50  # polls of a transfer before this rank blocks on it
CAPTURED = 0
Move = Callable[[list[Tensor], list[Tensor]], Any]
"""Starts a transfer from copies of the inputs to memory for the outputs. Returns gloo's work, or None."""

_exchange: list[PipeExchange] = []
_behind: dict[int, streams.Stream] = {}
_kept: set[Work] = set()
_unclaimed: dict[tuple[int, ...], dist.Store] = {}  # groups without a collective so far


def meet(store: dist.Store, me: int, ranks: Sequence[int], *, on_demand: bool = False) -> None:
    """Connect this process's collectives with those of the group's other ranks.

    ``on_demand``: see :mod:`streamrace.device.ranks.exchange`.
    """
    if not _exchange:
        _exchange.append(PipeExchange(me, on_demand=on_demand))
        work.use_exchange(_exchange[0], rank=me)
    _exchange[0].link(store, ranks)
    _unclaimed[tuple(ranks)] = store


def _claim_device(members: tuple[int, ...]) -> None:
    """Refuse two ranks on one GPU, as NCCL does when a group's first collective creates its communicator.

    Ranks on different nodes according to torchrun (GROUP_RANK) have different GPUs. Raise RuntimeError.
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
    """End the program's part. With ``done`` finish all its work and let the other ranks never wait for this rank again.

    Raise RuntimeError if its collectives could not go on, even if the program ignored that error.
    """
    if done:
        drain()
        if why := problem():
            raise RuntimeError(why)
        if _exchange:
            _exchange[0].promise(NEVER)


def drain(*, unless_broken: bool = False) -> None:
    """Let all work end. This takes host time and orders nothing.

    ``unless_broken``: return at once if the collectives cannot go on, an error that has been raised already.
    """
    if unless_broken and problem():
        return
    f = functions()
    if f.drain() < 0:
        raise RuntimeError(f.problem().decode())


def attend(rank: int) -> bool:
    """Answer the other ranks for a moment, while the host waits for ``rank``. Return whether that one has ended.

    Raise RuntimeError if the collectives cannot go on.
    """
    f = functions()
    if f.attend() < 0:
        raise RuntimeError(f.problem().decode())
    return _exchange[0].has_ended(rank)


def problem() -> str:
    """Return the reason why this process's collectives cannot go on; empty if they can."""
    return _exchange[0].problem if _exchange else ""


def follows() -> bool:
    """Check whether the collectives cannot go on because another rank has ended."""
    return bool(_exchange) and _exchange[0].follows


@dataclass
class CollectiveCall:
    """One rank's part in a collective. ``root`` and ``members`` are global ranks; ``nbytes``: the total bytes moved.

    ``number``: by which the group's members know the collective. One that a CUDA graph captures has :data:`CAPTURED`:
    each replay takes ``next_number``.

    ``op``: the reduction that the program requested. ``reduction``, ``scale`` and ``splits`` are for a recording
    (:class:`streamrace.trace.records.Transfer`). ``joined``: see :class:`streamrace.trace.calls.AgreedCall`. ``link``
    and ``origin``: see :class:`streamrace.device.costs.Meeting`.
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
    joined: bool = False
    next_number: Callable[[], int] = lambda: CAPTURED


class Work(dist.Work):
    """A collective that was issued. ``event`` follows it on ``stream``; None: the collective ran on the current stream.

    Dropping it without a wait drops the tensors that it holds; their memory is handed out again once the collective is
    done, as NCCL's watchdog ensures (ProcessGroupNCCL.cpp, TensorShelf).
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
        """Stay alive until the wait: torch's registry of functional collectives holds only the compiled part."""
        _kept.add(self)

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        """Make the current stream wait. Only the wait of a barrier blocks the host."""
        _kept.discard(self)
        if self._stream is not None:
            with streams.on(self._stream.device):
                return self._wait()
        return self._wait()

    def _wait(self) -> bool:
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
        """Return torch's own future: waiting for it makes the current stream wait, as with NCCL's future."""
        here = self._stream.device if self._stream is not None else torch.device("cuda", functions().index())
        future: Any = torch.futures.Future(devices=[here])
        if self._event is None:
            future.set_result(self._result)
            return future
        # One extra stream per stream of collectives: its waits add no order, as the collectives there end in turn.
        assert self._stream is not None
        if self._stream.stream_id not in _behind:
            with streams.on(here):
                _behind[self._stream.stream_id] = streams.hidden("nccl future")
        behind: Any = _behind[self._stream.stream_id]
        behind.wait_event(self._event)
        with torch.cuda.stream(behind):
            future.set_result(self._result)
        return future


def issue(job: CollectiveCall, *, stream: torch.Stream) -> None:
    """Give the collective to ``stream``."""
    _claim_device(job.members)
    call = agreed_call(job)
    place = tracing.place() if call is not None else ""
    if job.number == CAPTURED:
        work.capture_collective(_begins(job, call, place))
    elif call is not None:
        _exchange[0].expect(job.group, job.number, job.members, call, place)
    read_from = [flat(work.alias(tensor)) for tensor in job.reads]
    write_to = [flat(work.alias(tensor)) for tensor in job.writes]
    looks = uninitialised.checks(job.kernel, job.reads)
    state: list[Any] = []
    # not the job: its tensors would live until the collective's end, which differs from timing to timing
    members, move, text = job.members, job.move, f"{call.to(0)} at {place}" if call is not None else ""

    def read() -> None:
        with versions.of_gloo():
            outputs = [torch.empty_like(alias) for alias in write_to]
            inputs = [alias.clone() for alias in read_from]
            for look, alias in zip(looks, inputs, strict=False):
                look(alias)
            with _name_ended_rank(members, text):
                state.append((move(inputs, outputs), inputs, outputs))

    def write() -> None:
        transfer, _, outputs = state.pop()
        if transfer is not None:
            with _name_ended_rank(members, text):
                _wait(transfer)
        for alias, value in zip(write_to, outputs, strict=True):
            alias.copy_(value)

    launch(job, stream=stream, members=job.members, at_start=read, at_end=write, call=call)


def announce(job: CollectiveCall, running: tuple[int, ...]) -> AgreedCall | None:
    """Announce the call to those of its members that run in this dry run; return it, if they must make the same."""
    call = agreed_call(job)
    if job.splits is None and call is not None:
        _exchange[0].expect(job.group, job.number, running, call, tracing.place())
    return call


def agreed_call(job: CollectiveCall) -> AgreedCall | None:
    """Return this rank's call as the other ranks must make it, too. None: there is no other rank."""
    size = len(job.members)
    if size == 1:
        return None
    return mismatches.call(
        job.kernel, job.reads, job.writes, size=size, op=job.op, root=job.root, name=tracing.called_function(),
        joined=job.joined, splits=job.splits,
    )  # fmt: skip


def _begins(job: CollectiveCall, call: AgreedCall | None, place: str) -> Callable[[], int]:
    """Return what begins a captured collective in a replay. It must not keep the tensors alive, as a graph does not."""
    group, members, next_number = job.group, job.members, job.next_number

    def begin() -> int:
        number = next_number()
        if call is not None:
            _exchange[0].expect(group, number, members, call, place)
        return number

    return begin


@contextmanager
def _name_ended_rank(members: tuple[int, ...], call: str) -> Iterator[None]:
    """Replace gloo's error after the end of a rank: name the rank that ended, and the call that needed it."""
    try:
        yield
    except RuntimeError:
        if why := _exchange[0].lost(members, call):
            raise RuntimeError(why) from None
        raise


def launch(
    job: CollectiveCall, *, stream: torch.Stream, members: tuple[int, ...],
    at_start: work.Effect | None = None, at_end: work.Effect | None = None, call: AgreedCall | None = None,
) -> None:  # fmt: skip
    """Launch the collective as work of the device that waits for ``members``."""
    cost = costs.current()
    kernel = f"nccl::{job.kernel}"
    nbytes = job.nbytes or max(sum(t.nbytes for t in job.reads), sum(t.nbytes for t in job.writes), 0)
    meeting = costs.Meeting(job.members, job.link, job.origin)
    duration = cost.collective(kernel, nbytes, meeting, stream.stream_id)
    alone = duration if not cost.slow else replace(cost, slow={}).collective(kernel, nbytes, meeting, stream.stream_id)
    number = work.launch(
        kernel,
        stream=stream.stream_id,
        duration=round(duration),
        reads=job.reads,
        writes=job.writes,
        at_start=at_start,
        at_end=at_end,
        rendezvous=work.Rendezvous(
            job.group,
            job.number,
            members,
            root=job.root,
            nominal=nbytes,
            alone=alone,
            link=job.link,
            call=call.text() if call is not None else "",
        ),
        issuer=functions().current_stream(),
    )
    if tracing.recording():
        reads, writes = (tuple(recording.flat_view(tensor) for tensor in side) for side in (job.reads, job.writes))
        tracing.note(Transfer(number, reads, writes, job.reduction, job.splits, job.scale))


def _wait(transfer: Any) -> None:
    patience = _PATIENCE
    while patience and not transfer.is_completed():
        os.sched_yield()  # the others may be about to arrive; a promise would wake all of them
        patience -= 1
    if not patience:
        # This rank is at the end of the transfer: all its later collectives start after this time.
        _exchange[0].promise(functions().effective())
    transfer.wait()


def flat(tensor: Tensor) -> Tensor:
    """Return the same memory in one dimension."""
    return tensor.as_strided((tensor.numel(),), (1,))


def check(*tensors: Tensor) -> None:
    """Check tensors as NCCL's group does. Raise RuntimeError or ValueError with the group's messages."""
    for tensor in tensors:
        if not tensor.is_cuda:
            raise RuntimeError(f"No backend type associated with device type {tensor.device.type}")
        if not (
            tensor.is_contiguous() or (tensor.dim() == 4 and tensor.is_contiguous(memory_format=torch.channels_last))
        ):
            raise ValueError("Tensors must be contiguous")
