"""Batches collectives, sends and receives between ``ncclGroupStart`` and ``ncclGroupEnd``, issued as one at the end.

torch uses such a batch for ``_coalescing_manager`` and ``batch_isend_irecv`` (ProcessGroupNCCL::startCoalescing,
endCoalescing). A batch runs on the group's own stream if one of its parts is asynchronous, else on the current stream.
Its parts follow each other in virtual time, so each pays the latency that NCCL pays once. NCCL orders none of them:
a part that writes memory which another part uses is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor

from streamrace.device import streams
from streamrace.device.collectives import Work

Launch = Callable[[torch.Stream, bool], torch.Stream]
"""Issues a part after the stream's earlier work; returns the stream on which the part runs. True: not the first."""


class Batch:
    """The parts issued since the start of the batch."""

    def __init__(self) -> None:
        self._launches: list[Launch] = []
        self._parts: list[tuple[Sequence[Tensor], Sequence[Tensor]]] = []
        self._asynchronous = False

    def add(self, launch: Launch, reads: Sequence[Tensor], writes: Sequence[Tensor], *, asynchronous: bool) -> None:
        """Add a part. Raise RuntimeError if it writes memory that another part uses, or uses memory that one writes."""
        for others_reads, others_writes in self._parts:
            if _overlap(writes, [*others_reads, *others_writes]) or _overlap(reads, others_writes):
                raise RuntimeError(
                    "streamrace: two collectives of one group (between ncclGroupStart and ncclGroupEnd) use the same "
                    "memory, and one writes it: NCCL does not order them; issue them one after the other"
                )
        self._launches.append(launch)
        self._parts.append((reads, writes))
        self._asynchronous |= asynchronous

    def run(self, own: Callable[[], streams.Stream]) -> Work:
        """Issue all parts. ``own``: returns the group's stream."""
        tensors = [tensor for reads, writes in self._parts for tensor in (*reads, *writes)]
        current = streams.current()
        if not self._asynchronous:
            for place, launch in enumerate(self._launches):
                launch(current, place > 0)
            return Work(None, tensors, ())
        stream = own()
        stream.come_behind(current)
        for used in [launch(stream, place > 0) for place, launch in enumerate(self._launches)]:
            if used is not stream:
                stream.come_behind(used)
        return Work(stream.record_event(), tensors, tensors, stream=stream)


def _overlap(first: Iterable[Tensor], second: Sequence[Tensor]) -> bool:
    return any(
        a.nbytes and b.nbytes
        and a.data_ptr() < b.data_ptr() + b.nbytes and b.data_ptr() < a.data_ptr() + a.nbytes
        for a in first for b in second
    )  # fmt: skip
