"""Memory of a dry run: addresses without bytes behind them.

Every block has an address range of its own, so that tensors are told apart as on a device, but the system is
never asked for pages: nothing is written there. Small blocks are the exception: they are real, because programs
compare counts and flags (``assert_ints_same_as_other_ranks`` in DeepSpeed's ``zero/utils.py``), and what can be
computed from numbers that the host brought along is computed (:mod:`repro.accelerator.dry.kernels`).
"""

from __future__ import annotations

import mmap
import sys

import torch
from torch import Tensor

from repro.accelerator.memory import Block, Memory

REAL = 1 << 20  # bytes: blocks of up to this size can hold values
_NO_RESERVE = {"linux": 0x4000, "darwin": 0x40}.get(sys.platform, 0)  # MAP_NORESERVE: not in Python's mmap module


class DryBlock(Block):
    """``known``: what stands in it is what a live run would hold there."""

    __slots__ = ("known",)

    def __init__(self, number: int, nbytes: int, stream: int, base: Tensor | None) -> None:
        super().__init__(number, nbytes, stream, base)
        self.known = stream < 0 or nbytes <= REAL


class DryMemory(Memory):
    """Blocks by the storage through which the program sees them; nothing else holds them."""

    block_type: type[Block] = DryBlock

    def allocate(self, shape: tuple[int, ...], stride: tuple[int, ...], dtype: torch.dtype, stream: int) -> Tensor:
        spanned = 0 if 0 in shape else 1 + sum((n - 1) * s for n, s in zip(shape, stride, strict=True))
        nbytes = spanned * dtype.itemsize
        if nbytes <= REAL:
            return self.adopt(torch.empty_strided(shape, stride, dtype=dtype), stream)
        flat = torch.frombuffer(_addresses(nbytes), dtype=torch.uint8)
        tensor = torch.empty(0, dtype=dtype).set_(flat.untyped_storage(), 0, shape, stride)
        return self.adopt(tensor, stream)

    def adopt(self, base: Tensor, stream: int) -> Tensor:
        self.register(base, stream, None)
        return base

    def alias(self, tensor: Tensor, block: Block) -> Tensor:
        return tensor


def _addresses(nbytes: int) -> mmap.mmap:
    """A range of addresses, given back with the last reference to it. Raises MemoryError."""
    try:
        return mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NO_RESERVE)
    except (OSError, ValueError) as error:
        raise MemoryError(
            f"the system gives no range of {nbytes} addresses for a tensor that holds nothing ({error}): "
            "raise the limit on address space (ulimit -v), or run a smaller model"
        ) from error
