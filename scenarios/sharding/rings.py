"""Builds all-gather, reduce-scatter and all-reduce from sends and receives: flat ring, hierarchical ring, HO-Ring.

HO-Ring is that of PaRO (arXiv 2310.06003; NeurIPS 2024 calls it "PaRO-CC"). A flat ring over all ranks waits for the
one link between two nodes that each block passes: (n-1) V/n bytes over one link. A hierarchical ring sends a block to
the other groups over all ranks' links at once, (g-1) V/n bytes each, and round within the group, where links are fast.
HO-Ring does both at the same time, on two lanes: block k goes round within the group while block k+1 arrives.

The collectives are called on the caller's current lane and end there: its later work comes after the result, and, where
streams exist, the host waits for nothing. Temporary buffers belong to the caller's lane.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from streamrace.scenarios.sharding.lanes import Lane, LaneOrder, Mark
from streamrace.scenarios.sharding.ring_hops import Blocks, Hop, Ring, Slots, gather_round, reduce_round
from streamrace.scenarios.sharding.synchronisations import Sync
from streamrace.scenarios.sharding.topology import Topology

CHUNK = 1 << 22  # elements


class Collectives(Protocol):
    """Collectives of ranks, on contiguous tensors of one dtype; blocks are in the order of ranks."""

    def all_gather(self, output: Tensor, input: Tensor) -> None:  # noqa: A002 - torch's name
        """Gather all ranks' ``input`` (B) into ``output`` (ranks x B), of which ``input`` may be this rank's block."""
        ...

    def reduce_scatter(self, output: Tensor, input: Tensor) -> None:  # noqa: A002
        """Sum all ranks' blocks of this rank, of ``input`` (ranks x B), into ``output`` (B; may be that block)."""
        ...

    def all_reduce(self, tensor: Tensor) -> None:
        """Sum all ranks' ``tensor``, in place."""
        ...


class TorchCollectives:
    """Torch's own collectives, of one process group."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        self._group = group

    def all_gather(self, output: Tensor, input: Tensor) -> None:  # noqa: A002
        dist.all_gather_single(output, input, group=self._group)

    def reduce_scatter(self, output: Tensor, input: Tensor) -> None:  # noqa: A002
        dist.reduce_scatter_single(output, input, group=self._group)

    def all_reduce(self, tensor: Tensor) -> None:
        dist.all_reduce(tensor, group=self._group)


class _Rings(ABC):
    """The rings' common base: checks of the input, the end, and an all-reduce by the other two.

    Raises ValueError for sizes that do not fit.
    """

    def __init__(self, topology: Topology, order: LaneOrder) -> None:
        self._topology, self._order = topology, order

    def all_gather(self, output: Tensor, input: Tensor) -> None:  # noqa: A002
        """Gather as :meth:`Collectives.all_gather`. Meanwhile the caller's lane copies the own block."""
        blocks, own = self._blocks(output, input), input.view(-1)
        own_block = blocks[self._topology.where, self._topology.number]
        hops = self._gather(blocks, own, self._order.mark()) if own.numel() else []
        if own_block.data_ptr() != own.data_ptr():
            own_block.copy_(own)
        for hop in hops:
            hop.sent(Sync.RING_BEFORE_OUTPUT)
            hop.arrived(Sync.RING_BEFORE_OUTPUT)

    def reduce_scatter(self, output: Tensor, input: Tensor) -> None:  # noqa: A002
        """Sum as :meth:`Collectives.reduce_scatter`. Each partial sum is rounded to the dtype."""
        blocks, own = self._blocks(input, output), output.view(-1)
        if self._topology.ranks == 1:
            own.copy_(blocks.view(-1))
        elif own.numel():
            self._reduce(own, blocks)

    def all_reduce(self, tensor: Tensor) -> None:
        """Sum as :meth:`Collectives.all_reduce`: a reduce-scatter and an all-gather, padded to blocks of one size."""
        ranks, rank, flat = self._topology.ranks, self._topology.rank, tensor.view(-1)
        block = -(-flat.numel() // ranks)
        full = flat
        if ranks * block != flat.numel():
            full = flat.new_empty(ranks * block)
            full[: flat.numel()].copy_(flat)
            full[flat.numel() :].zero_()
        own_part = full[rank * block : (rank + 1) * block]
        self.reduce_scatter(own_part, full)
        self.all_gather(full, own_part)
        if full is not flat:
            flat.copy_(full[: flat.numel()])

    def _summed(self, hops: Sequence[Hop], lane: Lane) -> None:
        """End a reduce-scatter: order the caller's lane after all sums of ``lane``, and after all sends."""
        for hop in hops:
            hop.sent(Sync.RING_BEFORE_OUTPUT)
        self._order.wait(Sync.RING_BEFORE_OUTPUT, self._order.streams.mark(lane))

    @abstractmethod
    def _gather(self, blocks: Tensor, own: Tensor, input_ready: Mark) -> list[Hop]:
        """Receive all ``blocks`` (groups x group x B) but the own one, having waited for ``given``."""

    @abstractmethod
    def _reduce(self, output: Tensor, blocks: Tensor) -> None:
        """Sum into ``output`` (B elements), and end: temporary buffers live until then."""

    def _blocks(self, full: Tensor, part: Tensor) -> Tensor:
        ranks, group = self._topology.ranks, self._topology.group
        if full.numel() != ranks * part.numel() or full.dtype is not part.dtype:
            raise ValueError(
                f"{full.numel()} elements of {full.dtype} are not {ranks} blocks of {part.numel()} of {part.dtype}"
            )
        return full.view(ranks // group, group, part.numel())


class FlatRing(_Rings):
    """A ring over all ranks, in their order. A reduce-scatter needs temporary buffers of two blocks."""

    def __init__(self, topology: Topology, order: LaneOrder) -> None:
        super().__init__(topology, order)
        self._ring = Ring(topology.across, order)
        self._lane = order.streams.new("ring")

    def _gather(self, blocks: Tensor, own: Tensor, input_ready: Mark) -> list[Hop]:
        with self._order.streams.on(self._lane):
            self._order.wait(Sync.INPUT_BEFORE_RING, input_ready)
            return gather_round(self._ring, blocks.flatten(0, 1), own)

    def _reduce(self, output: Tensor, blocks: Tensor) -> None:
        slots = Slots(2, output.numel(), output)
        input_ready = self._order.mark()
        with self._order.streams.on(self._lane):
            self._order.wait(Sync.INPUT_BEFORE_RING, input_ready)
            hops = reduce_round(self._ring, blocks.flatten(0, 1), slots, output)
        self._summed(hops, self._lane)


class HierarchicalRing(_Rings):
    """Rings between groups and within them, one after the other: HO-Ring without its overlap.

    A reduce-scatter needs temporary buffers of groups + 2 blocks.
    """

    def __init__(self, topology: Topology, order: LaneOrder) -> None:
        super().__init__(topology, order)
        self._between, self._within = Ring(topology.between, order), Ring(topology.within, order)
        self._lane = order.streams.new("ring")

    def _gather(self, blocks: Tensor, own: Tensor, input_ready: Mark) -> list[Hop]:
        number = self._within.place
        with self._order.streams.on(self._lane):
            self._order.wait(Sync.INPUT_BEFORE_RING, input_ready)
            hops = gather_round(self._between, blocks[:, number], own)
            if hops and self._within.size > 1:
                hops[-1].arrived(Sync.ARRIVAL_BEFORE_TURN)
            for back in range(self._between.size):
                group = blocks[self._between.before(back)]
                hops += gather_round(self._within, group, group[number] if back else own)
        return hops

    def _reduce(self, output: Tensor, blocks: Tensor) -> None:
        groups, group, block = blocks.shape
        slots = Slots(2, block, output)
        sums: Blocks = blocks[:, 0]  # within each group, of this rank's number
        if group > 1:
            sums = output.new_empty(groups, block) if groups > 1 else [output]
        hops: list[Hop] = []
        input_ready = self._order.mark()
        with self._order.streams.on(self._lane):
            self._order.wait(Sync.INPUT_BEFORE_RING, input_ready)
            if group > 1:
                for at in range(groups):
                    hops += reduce_round(self._within, blocks[at], slots, sums[at])
            if groups > 1:
                hops += reduce_round(self._between, sums, slots, output)
        self._summed(hops, self._lane)


class HoRing(_Rings):
    """HO-Ring: a ring between groups and a ring within them, at the same time, on a lane each.

    ``chunk``: larger blocks (elements) are cut into pieces that follow each other. Then the part that is not hidden (of
    an all-gather the last turns within the group, of a reduce-scatter the first) is that of a piece. A reduce-scatter
    needs temporary buffers of one block and four pieces.
    """

    def __init__(self, topology: Topology, order: LaneOrder, *, chunk: int = CHUNK) -> None:
        super().__init__(topology, order)
        if chunk < 1:
            raise ValueError(f"a chunk of {chunk} elements holds nothing: give 1 or more")
        self._between, self._within = Ring(topology.between, order), Ring(topology.within, order)
        self._outer, self._inner = order.streams.new("between"), order.streams.new("within")
        self._chunk = chunk

    def _gather(self, blocks: Tensor, own: Tensor, input_ready: Mark) -> list[Hop]:
        """Issue a block's hop before its turns: without streams, the hop is then in progress during the turns."""
        order, on, number = self._order, self._order.streams.on, self._within.place
        groups, group, block = blocks.shape
        parts = _parts(block, self._chunk)
        arrivals: list[Hop | None] = [None] * len(parts)  # of the block that is sent on now
        hops: list[Hop] = []
        for lane, size in ((self._outer, groups), (self._inner, group)):
            if size > 1:
                with on(lane):
                    order.wait(Sync.INPUT_BEFORE_RING, input_ready)
        for back in range(groups):
            group_blocks, next_ = blocks[self._between.before(back)], blocks[self._between.before(back + 1)]
            for at, part in enumerate(parts):
                arrival, sending = arrivals[at], group_blocks[number, part] if back else own[part]
                if back < groups - 1:
                    with on(self._outer):
                        if arrival is not None:
                            arrival.arrived(Sync.ARRIVAL_BEFORE_HOP)
                        hop = arrivals[at] = self._between.exchange(sending, next_[number, part])
                    hops.append(hop)
                if group > 1:
                    with on(self._inner):
                        if arrival is not None:
                            arrival.arrived(Sync.ARRIVAL_BEFORE_TURN)
                        hops += gather_round(self._within, group_blocks[:, part], sending)
        return hops

    def _reduce(self, output: Tensor, blocks: Tensor) -> None:
        """Sum a block within the group while the one before is being sent; the own group's block comes last.

        On the outer lane, the sum of earlier groups arrives in ``came``, and this group's sum is added to it.
        """
        order, on = self._order, self._order.streams.on
        groups, group, block = blocks.shape
        parts = _parts(block, self._chunk)
        turning, summed = (Slots(2, parts[0].stop if size > 1 else 0, output) for size in (group, groups))
        received = output.new_empty(block if groups > 1 else 0)
        arrivals: list[Hop | None] = [None] * len(parts)  # of the block that was sent last
        hops: list[Hop] = []
        input_ready = order.mark()
        with on(self._inner if group > 1 else self._outer):
            order.wait(Sync.INPUT_BEFORE_RING, input_ready)
        for back in range(1, groups + 1):
            group_blocks, last = blocks[self._between.before(back)], back == groups
            for at, part in enumerate(parts):
                slot, into, arrival = None, output[part], arrivals[at]
                partial, ready = group_blocks[0, part], None
                if group > 1:
                    with on(self._inner):
                        if not last:
                            slot, into = summed.take(part.stop - part.start)
                        hops += reduce_round(self._within, group_blocks[:, part], turning, into)
                        partial, ready = into, order.mark()
                if groups == 1:
                    continue
                with on(self._outer):
                    if group > 1:
                        order.wait(Sync.TURN_BEFORE_HOP, ready)
                    if arrival is not None:
                        arrival.arrived(Sync.ARRIVAL_BEFORE_SUM)
                        if not last and slot is None:
                            slot, into = summed.take(part.stop - part.start)
                        partial = torch.add(received[part], partial, out=into)
                    if not last:
                        hop = arrivals[at] = self._between.exchange(partial, received[part])
                        hops.append(hop)
                        if slot is not None:
                            slot.hop = hop
        self._summed(hops, self._outer if groups > 1 else self._inner)


def _parts(numel: int, chunk: int) -> list[slice]:
    """Cut ``numel`` elements into pieces of one size, of at most ``chunk``; the last one may be shorter."""
    size = -(-numel // -(-numel // chunk))
    return [slice(start, min(start + size, numel)) for start in range(0, numel, size)]


RINGS: dict[str, type[FlatRing] | type[HierarchicalRing] | type[HoRing]] = {
    "flat": FlatRing,
    "hierarchical": HierarchicalRing,
    "ho-ring": HoRing,
}
"""Rings by their names in scenarios."""
