"""Collectives, sends and receives between ``ncclGroupStart`` and ``ncclGroupEnd``: one launch, issued at the end.

torch has it for ``_coalescing_manager`` and ``batch_isend_irecv`` (ProcessGroupNCCL::startCoalescing, endCoalescing).
It begins when its stream gets to it: the group's own stream where one of its parts was asynchronous, the current one
else. Collectives follow each other there in virtual time, which costs each the latency that NCCL pays once. NCCL orders
none of them: a part that writes what another uses is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor

from streamrace.device import streams
from streamrace.device.collectives import Work

Launch = Callable[[torch.Stream], torch.Stream]
"""Issues a part behind what the stream has; gives the stream on which it runs."""


class Batch:
    """What was issued since the start."""

    def __init__(self) -> None:
        self._launches: list[Launch] = []
        self._parts: list[tuple[Sequence[Tensor], Sequence[Tensor]]] = []
        self._asynchronous = False

    def add(self, launch: Launch, reads: Sequence[Tensor], writes: Sequence[Tensor], *, asynchronous: bool) -> None:
        """Raises RuntimeError where this part writes what another uses, or uses what another writes."""
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
        """Issue all parts. ``own`` gives the group's stream."""
        held = [tensor for reads, writes in self._parts for tensor in (*reads, *writes)]
        current = streams.current()
        if not self._asynchronous:
            for launch in self._launches:
                launch(current)
            return Work(None, held, ())
        stream = own()
        stream.come_behind(current)
        for used in [launch(stream) for launch in self._launches]:
            if used is not stream:
                stream.come_behind(used)
        return Work(stream.record_event(), held, held, stream=stream)


def _overlap(ours: Iterable[Tensor], others: Sequence[Tensor]) -> bool:
    return any(
        one.nbytes and other.nbytes
        and one.data_ptr() < other.data_ptr() + other.nbytes and other.data_ptr() < one.data_ptr() + one.nbytes
        for one in ours for other in others
    )  # fmt: skip
