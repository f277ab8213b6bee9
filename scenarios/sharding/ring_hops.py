"""Ranks in a ring: each sends to the next and receives from the one before, at the same time.

A block that goes round once and is kept by everybody is an all-gather, one to which everybody adds is a
reduce-scatter (Patarasuk and Yuan 2009). Sends and receives are torch's point-to-point operations on a process group,
issued from the current lane.

Nothing here waits for more than it needs, and each wait has its name: a block is sent on when it has arrived, summed
when it has arrived, and a buffer is filled again when what was in it has been sent.
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
"""By place in a ring; each is contiguous."""


class Hop:
    """One send and one receive, issued together. NCCL makes one work of them, other backends two."""

    def __init__(self, works: Sequence[dist.Work], order: LaneOrder) -> None:
        self._order = order
        self._send: dist.Work | None = works[0]
        self._receive: dist.Work | None = works[-1]
        # A second wait for one of gloo's would never end: it counts the messages.
        self._once = isinstance(order.streams, NoStreams)

    def arrived(self, name: Sync) -> None:
        """Later work of the current lane comes after what was received."""
        self._order.arrive(name, self._receive)
        if self._once:
            self._receive = None

    def sent(self, name: Sync) -> None:
        """Later work of the current lane comes after what was sent: it may be overwritten."""
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
        """The place so many before this rank's."""
        return (self.place - back) % self.size

    def exchange(self, send: Tensor, receive: Tensor) -> Hop:
        """Send to the next, receive from the one before. Contiguous tensors of one size, from the current lane."""
        both = [
            dist.P2POp(dist.isend, send, group=self._group, group_peer=self.before(-1)),
            dist.P2POp(dist.irecv, receive, group=self._group, group_peer=self.before(1)),
        ]
        return Hop(dist.batch_isend_irecv(both), self.order)


class Slot:
    """A buffer, and the hop that sends what is in it."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor
        self.hop: Hop | None = None


class Slots:
    """``count`` buffers of ``numel`` elements, of the dtype and on the device of ``like``, used in turn.

    They are made on the lane that is current now, and live until they are dropped: that lane has to come after their
    last use then.
    """

    def __init__(self, count: int, numel: int, like: Tensor) -> None:
        self._slots = [Slot(like.new_empty(numel)) for _ in range(count)]

    def take(self, numel: int) -> tuple[Slot, Tensor]:
        """The next buffer, its first ``numel`` elements: for the current lane to fill."""
        slot = self._slots.pop(0)
        self._slots.append(slot)
        if slot.hop is not None:
            slot.hop.sent(Sync.SENT_BEFORE_REUSE)
            slot.hop = None
        return slot, slot.tensor[:numel]


def gather_round(ring: Ring, blocks: Blocks, own: Tensor) -> list[Hop]:
    """Every rank's ``own`` goes round. It arrives in ``blocks``, by place; this rank's own place is left as it is.

    Gives the hops. The last arrival is not waited for.
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
    """The sum of all ranks' blocks of this rank's place comes to stand in ``into``; of two ranks at least.

    The sum that ends here begins at the next rank and goes round; each adds its own to what it received, in ``slots``
    (two are enough: one is sent while the other is filled). ``blocks`` are only read, and ``into`` may be this rank's
    own. It is written by the current lane.
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
