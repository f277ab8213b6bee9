"""Holds the memory of all ranks of a recording in one allocation, so that it is reset in one copy.

Blocks share memory as the device's allocator let them (:mod:`streamrace.replay.placement`). Each begins at a multiple
of 64 bytes, as torch's own allocations do: some kernels depend on the alignment.
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
_NEAR = 4096  # bytes between two parts that are copied as one
_FRESH = 0xFF  # streamrace/device/csrc/allocator.h
_LIMIT = 64 << 30  # bytes: more than any recording of a real run needs


class Arena:
    """All blocks of all ranks. ``bytes`` is their memory as a numpy array of uint8.

    ``late``: by rank, see :class:`streamrace.replay.placement.Placement`.
    """

    def __init__(
        self, records: Sequence[Sequence[TraceRecord]], late: Mapping[int, Collection[Hold]] = MappingProxyType({})
    ) -> None:
        self._blocks: list[dict[int, tuple[int, int]]] = []  # by rank: offset, size
        self._views: dict[tuple[Any, ...], Tensor] = {}
        self._storages: dict[tuple[int, int], torch.UntypedStorage] = {}
        self._placements: list[tuple[Placement, int]] = []  # by rank: placement, offset of the rank's memory
        contents: list[tuple[int, bytes]] = []
        size = 0
        for rank, rank_records in enumerate(records):
            placement = Placement(rank_records, late.get(rank, ()))
            self._placements.append((placement, size))
            blocks: dict[int, tuple[int, int]] = {}
            for record in rank_records:
                if isinstance(record, Alloc):
                    blocks[record.block] = (size + placement.offsets[record.block], record.nbytes)
            size += placement.size
            for record in rank_records:
                if isinstance(record, Initial):
                    blocks[record.block] = (size, len(record.data))
                    contents.append((size, record.data))
                    size += -(-len(record.data) // _ALIGNMENT) * _ALIGNMENT
            if not 0 <= size < _LIMIT:
                raise ReplayError(f"the recording asks for {size} bytes of memory: it is damaged")
            self._blocks.append(blocks)
        self._memory = torch.full((size,), _FRESH, dtype=torch.uint8)
        self.bytes = self._memory.numpy()
        for offset, data in contents:
            self.bytes[offset : offset + len(data)] = np.frombuffer(data, dtype=np.uint8)
        self._changing = [(self.bytes, self.bytes.copy())]  # the bytes that reset() writes, and their values

    def reset(self) -> None:
        """Reset memory to its initial content, or to its content at the last :meth:`settle`."""
        for now, then in self._changing:
            now[:] = then

    def take(self, other: Arena) -> None:
        """Copy the content of each block from ``other``, in which the same blocks lie elsewhere."""
        for rank, blocks in enumerate(self._blocks):
            for block, (offset, nbytes) in blocks.items():  # newer blocks last: they own the memory of their formers
                source = other._block(rank, block)[0]
                self.bytes[offset : offset + nbytes] = other.bytes[source : source + nbytes]

    def settle(self, touched: Iterable[tuple[int, int]]) -> None:
        """Make the current content the one that :meth:`reset` restores; only ``touched`` (rank, block) will change."""
        ranges: list[list[int]] = []
        for offset, nbytes in sorted(self._block(*key) for key in touched):
            if ranges and offset - ranges[-1][1] < _NEAR:
                ranges[-1][1] = max(ranges[-1][1], offset + nbytes)
            else:
                ranges.append([offset, offset + nbytes])
        self._changing = [(self.bytes[lo:hi], self.bytes[lo:hi].copy()) for lo, hi in ranges]

    @property
    def blocks(self) -> dict[tuple[int, int], tuple[int, int]]:
        """Return the offset and size of each block, by rank and block, in the order of allocation."""
        return {(rank, block): place for rank, places in enumerate(self._blocks) for block, place in places.items()}

    def nbytes(self, rank: int, block: int) -> int:
        """Return the size of a block in bytes."""
        return self._block(rank, block)[1]

    def part(self, rank: int, access: Access) -> npt.NDArray[np.uint8]:
        """Return the bytes of an access, widest stride first. Raises :class:`ReplayError` if outside the block."""
        block, lo, hi, _ = access
        start, nbytes = self._block(rank, block)
        if not 0 <= lo <= hi <= nbytes:
            raise ReplayError(f"rank {rank}: an access of the recording reaches beyond its memory: it is damaged")
        return self.part_of(self.bytes, start, access)

    @staticmethod
    def part_of(memory: npt.NDArray[Any], start: int, access: Access) -> npt.NDArray[Any]:
        """Return the bytes of an access in any memory in which its block begins at ``start``."""
        _, lo, hi, layout = access
        block_bytes = memory[start + lo : start + hi]
        if layout is None:
            return block_bytes
        item, sizes, strides = layout
        shape, steps = (*reversed(sizes), item), (*reversed(strides), 1)
        if sum((n - 1) * step for n, step in zip(shape, steps, strict=True)) >= block_bytes.size or min(steps) < 0:
            raise ReplayError("an access of the recording reaches beyond its memory: it is damaged")
        return np.lib.stride_tricks.as_strided(block_bytes, shape, steps)

    def inherit(self, rank: int, block: int) -> Callable[[], object] | None:
        """Return the action that fills the block with inherited content; None if the content lies in place already."""
        placement, begin = self._placements[rank]
        pieces = []
        for source, target, nbytes in placement.inherited(block):
            source_at, target_at = begin + source, begin + target
            pieces.append((self.bytes[target_at : target_at + nbytes], self.bytes[source_at : source_at + nbytes]))
        if not pieces:
            return None

        def fill() -> None:
            for piece, former in pieces:
                piece[:] = former

        return fill

    def view(self, rank: int, view: Any) -> Tensor:
        """Return the tensor that a :data:`View` describes. Raises :class:`ReplayError` if the view is damaged."""
        try:
            key = (rank, *view)
            tensor = self._views.get(key)
            if tensor is None:
                tensor = self._views[key] = self._view(rank, *view)
            return tensor
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
        """Return the block's storage, one per block as on the device: linalg_qr compares its arguments' storages."""
        storage = self._storages.get((rank, block))
        if storage is None:
            storage = torch.from_numpy(self.bytes[start : start + nbytes]).untyped_storage()
            self._storages[rank, block] = storage
        return storage

    def _block(self, rank: int, block: int) -> tuple[int, int]:
        place = self._blocks[rank].get(block)
        if place is None:
            raise ReplayError(f"rank {rank}: the recording has no block {block}: it is damaged")
        return place
