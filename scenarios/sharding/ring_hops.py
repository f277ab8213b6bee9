"""Arranges ranks in a ring: each sends to the next and receives from the one before, at the same time.

A block that goes round once and is kept by every rank is an all-gather; if every rank adds to it, a reduce-scatter
(Patarasuk and Yuan 2009). Sends and receives are torch's point-to-point operations on a process group, issued from the
current lane.

No wait is longer than necessary, and each has its name: a block is sent on or summed when it has arrived, and a buffer
is filled again when its contents have been sent.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import torch
import torch.distributed as dist
from torch import Tensor

from streamrace.scenarios.sharding.lanes import LaneOrder, NoStreams
from streamrace.scenarios.sharding.synchronisations import Sync

Blocks: TypeAlias = Tensor | Sequence[Tensor]
"""Blocks by place in a ring; each is contiguous."""


class Hop:
    """One send and one receive, issued together. NCCL has one work for both, other backends two."""

    def __init__(self, works: Sequence[dist.Work], order: LaneOrder) -> None:
        self._order = order
        self._send: dist.Work | None = works[0]
        self._receive: dist.Work | None = works[-1]
        # A second wait for a work of gloo would never end: gloo counts the messages.
        self._once = isinstance(order.streams, NoStreams)

    def arrived(self, name: Sync) -> None:
        """Order later work of the current lane after the receive."""
        self._order.arrive(name, self._receive)
        if self._once:
            self._receive = None

    def sent(self, name: Sync) -> None:
        """Order later work of the current lane after the send: the sent tensor may then be overwritten."""
        self._order.arrive(name, self._send)
        if self._once:
            self._send = None


class Ring:
    """A process group as a ring. ``place``: this rank's number in it, of ``size``."""

    def __init__(self, group: dist.ProcessGroup, order: LaneOrder) -> None:
        self.place, self.size = dist.get_rank(group), dist.get_world_size(group)
        self.order = order
        self._group = group

    def before(self, back: int) -> int:
        """Return the place ``back`` places before this rank's."""
        return (self.place - back) % self.size

    def exchange(self, send: Tensor, receive: Tensor) -> Hop:
        """Send to the next, receive from the one before. Contiguous tensors of one size, from the current lane."""
        both = [
            dist.P2POp(dist.isend, send, group=self._group, group_peer=self.before(-1)),
            dist.P2POp(dist.irecv, receive, group=self._group, group_peer=self.before(1)),
        ]
        return Hop(dist.batch_isend_irecv(both), self.order)


class Slot:
    """A buffer, and the hop that sends its contents."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor
        self.hop: Hop | None = None


class Slots:
    """Hands out ``count`` buffers of ``numel`` elements, of the dtype and on the device of ``like``, in turn.

    The buffers are allocated on the lane that is current now, and live until they are dropped: by then that lane has to
    be ordered after their last use.
    """

    def __init__(self, count: int, numel: int, like: Tensor) -> None:
        self._slots = [Slot(like.new_empty(numel)) for _ in range(count)]

    def take(self, numel: int) -> tuple[Slot, Tensor]:
        """Return the next buffer, and its first ``numel`` elements for the current lane to fill."""
        slot = self._slots.pop(0)
        self._slots.append(slot)
        if slot.hop is not None:
            slot.hop.sent(Sync.SENT_BEFORE_REUSE)
            slot.hop = None
        return slot, slot.tensor[:numel]


def gather_round(ring: Ring, blocks: Blocks, own: Tensor) -> list[Hop]:
    """Send every rank's ``own`` round, into ``blocks``, by place; this rank's own place is left as it is.

    Returns the hops. The last arrival is not waited for.
    """
    hops: list[Hop] = []
    sending = own
    for turn in range(1, ring.size):
        if hops:
            hops[-1].arrived(Sync.ARRIVAL_BEFORE_HOP)
        receiving = blocks[ring.before(turn)]
        hops.append(ring.exchange(sending, receiving))
        sending = receiving
    return hops


def reduce_round(ring: Ring, blocks: Blocks, slots: Slots, into: Tensor) -> list[Hop]:
    """Sum all ranks' blocks of this rank's place into ``into``; needs at least two ranks.

    The sum that ends here begins at the next rank and goes round; each adds its own block to the received sum, in
    ``slots`` (two are enough: one is sent while the other is filled). ``blocks`` are only read, and ``into`` may be
    this rank's own block. The current lane writes ``into``.
    """
    hops: list[Hop] = []
    sending, before = blocks[ring.before(1)], None
    for turn in range(2, ring.size + 1):
        slot, receiving = slots.take(into.numel())
        hop = ring.exchange(sending, receiving)
        hops.append(hop)
        if before is not None:
            before.hop = hop
        hop.arrived(Sync.ARRIVAL_BEFORE_SUM)
        own = blocks[ring.before(turn)]
        torch.add(receiving, own, out=into if turn == ring.size else receiving)
        sending, before = receiving, slot
    return hops
