"""The memory of all ranks of a recording, in one piece, so that it is set back in one copy.

Blocks share memory as the device's allocator let them (:mod:`streamrace.replay.placement`). Each begins at a multiple
of 64 bytes, as torch's own allocations do: some kernels go by the alignment.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from streamrace.device.values import ValueFault, dtype_of
from streamrace.replay.faults import ReplayError
from streamrace.replay.placement import Hold, Placement
from streamrace.trace.records import NOBODY, Access, Alloc, Initial, TraceRecord

_ALIGNMENT = 64
_NEAR = 4096  # bytes between two pieces that are copied as one
_FRESH = 0xFF  # streamrace/device/csrc/allocator.h
_LIMIT = 64 << 30  # bytes: what no recording of a real run comes near


class Arena:
    """All blocks of all ranks. ``bytes`` is their memory as numpy sees it, uint8.

    ``late``: by rank, see :class:`streamrace.replay.placement.Placement`.
    """

    def __init__(
        self, records: Sequence[Sequence[TraceRecord]], late: Mapping[int, Collection[Hold]] = MappingProxyType({})
    ) -> None:
        self._blocks: list[dict[int, tuple[int, int]]] = []  # by rank: offset, size
        self._views: dict[tuple[Any, ...], Tensor] = {}
        self._storages: dict[tuple[int, int], torch.UntypedStorage] = {}
        self._placements: list[tuple[Placement, int]] = []  # by rank, and where the rank's memory begins
        given: list[tuple[int, bytes]] = []
        size = 0
        for rank, those in enumerate(records):
            placement = Placement(those, late.get(rank, ()))
            self._placements.append((placement, size))
            blocks: dict[int, tuple[int, int]] = {}
            for record in those:
                if isinstance(record, Alloc):
                    blocks[record.block] = (size + placement.offsets[record.block], record.nbytes)
            size += placement.size
            for record in those:
                if isinstance(record, Initial):
                    blocks[record.block] = (size, len(record.data))
                    given.append((size, record.data))
                    size += -(-len(record.data) // _ALIGNMENT) * _ALIGNMENT
            if not 0 <= size < _LIMIT:
                raise ReplayError(f"the recording wants {size} bytes of memory: it is damaged")
            self._blocks.append(blocks)
        self._memory = torch.full((size,), _FRESH, dtype=torch.uint8)
        self.bytes = self._memory.numpy()
        for offset, data in given:
            self.bytes[offset : offset + len(data)] = np.frombuffer(data, dtype=np.uint8)
        self._changing = [(self.bytes, self.bytes.copy())]  # what is set back, and to what

    def reset(self) -> None:
        """As it was at the beginning, or at the last :meth:`settle`."""
        for now, then in self._changing:
            now[:] = then

    def take(self, other: Arena) -> None:
        """Let each block hold what it holds in ``other``, where the same blocks lie elsewhere."""
        for rank, blocks in enumerate(self._blocks):
            for block, (offset, nbytes) in blocks.items():  # the later ones last: they have their formers' memory
                there = other._block(rank, block)[0]
                self.bytes[offset : offset + nbytes] = other.bytes[there : there + nbytes]

    def settle(self, touched: Iterable[tuple[int, int]]) -> None:
        """From now on :meth:`reset` comes back to this; only ``touched`` (rank, block) will change."""
        ranges: list[list[int]] = []
        for offset, nbytes in sorted(self._block(*one) for one in touched):
            if ranges and offset - ranges[-1][1] < _NEAR:
                ranges[-1][1] = max(ranges[-1][1], offset + nbytes)
            else:
                ranges.append([offset, offset + nbytes])
        self._changing = [(self.bytes[lo:hi], self.bytes[lo:hi].copy()) for lo, hi in ranges]

    @property
    def blocks(self) -> dict[tuple[int, int], tuple[int, int]]:
        """By rank and block, in the order in which they were made: where it begins, and how long it is."""
        return {(rank, block): place for rank, those in enumerate(self._blocks) for block, place in those.items()}

    def nbytes(self, rank: int, block: int) -> int:
        """How large a block is."""
        return self._block(rank, block)[1]

    def part(self, rank: int, access: Access) -> npt.NDArray[np.uint8]:
        """The bytes of an access, widest stride first. Raises :class:`ReplayError` where they are not the block's."""
        block, lo, hi, _ = access
        start, nbytes = self._block(rank, block)
        if not 0 <= lo <= hi <= nbytes:
            raise ReplayError(f"rank {rank}: an access of the recording reaches beyond its memory: it is damaged")
        return self.part_of(self.bytes, start, access)

    @staticmethod
    def part_of(memory: npt.NDArray[Any], start: int, access: Access) -> npt.NDArray[Any]:
        """The same of any bytes, in which the block begins at ``start``."""
        _, lo, hi, layout = access
        whole = memory[start + lo : start + hi]
        if layout is None:
            return whole
        item, sizes, strides = layout
        shape, steps = (*reversed(sizes), item), (*reversed(strides), 1)
        if sum((n - 1) * step for n, step in zip(shape, steps, strict=True)) >= whole.size or min(steps) < 0:
            raise ReplayError("an access of the recording reaches beyond its memory: it is damaged")
        return np.lib.stride_tricks.as_strided(whole, shape, steps)

    def inherit(self, rank: int, block: int) -> Callable[[], object] | None:
        """What fills the block with what it finds (:meth:`Placement.inherited`), bound to it; None: it lies there."""
        placement, begin = self._placements[rank]
        pieces = []
        for source, target, nbytes in placement.inherited(block):
            there, here = begin + source, begin + target
            pieces.append((self.bytes[here : here + nbytes], self.bytes[there : there + nbytes]))
        if not pieces:
            return None

        def fill() -> None:
            for mine, former in pieces:
                mine[:] = former

        return fill

    def view(self, rank: int, view: Any) -> Tensor:
        """The tensor that a :data:`View` describes. Raises :class:`ReplayError` where there is none."""
        try:
            key = (rank, *view)
            found = self._views.get(key)
            if found is None:
                found = self._views[key] = self._view(rank, *view)
            return found
        except (TypeError, ValueError, RuntimeError, OverflowError, ValueFault) as error:
            raise ReplayError(f"rank {rank}: a tensor of the recording is damaged: {view!r:.100}") from error

    def _view(
        self,
        rank: int,
        block: int,
        dtype: str,
        shape: tuple[int, ...],
        stride: tuple[int, ...],
        offset: int,
        conjugate: bool,
        negative: bool,
    ) -> Tensor:
        kind = dtype_of(dtype)
        if block == NOBODY and 0 in shape:
            return torch.empty(0, dtype=kind).as_strided(shape, stride)
        start, nbytes = self._block(rank, block)
        if len(shape) != len(stride) or offset < 0 or any(n < 0 for n in shape) or any(n < 0 for n in stride):
            raise ValueError("a shape or a stride")
        last = offset + sum((n - 1) * step for n, step in zip(shape, stride, strict=True))
        if 0 not in shape and (last + 1) * kind.itemsize > nbytes:
            raise ReplayError(f"rank {rank}: a tensor of the recording reaches beyond its memory: it is damaged")
        if 0 in shape:
            offset = 0
        storage = self._storage_of(rank, block, start, nbytes)
        tensor = torch.empty(0, dtype=kind).set_(storage, offset, shape, stride)
        if negative:
            tensor = torch._neg_view(tensor)
        return torch._conj(tensor) if conjugate else tensor

    def _storage_of(self, rank: int, block: int, start: int, nbytes: int) -> torch.UntypedStorage:
        """Each block is a storage, as on the device: some kernels (linalg_qr) ask whether two arguments share one."""
        found = self._storages.get((rank, block))
        if found is None:
            found = torch.from_numpy(self.bytes[start : start + nbytes]).untyped_storage()
            self._storages[rank, block] = found
        return found

    def _block(self, rank: int, block: int) -> tuple[int, int]:
        found = self._blocks[rank].get(block)
        if found is None:
            raise ReplayError(f"rank {rank}: the recording has no block {block}: it is damaged")
        return found
