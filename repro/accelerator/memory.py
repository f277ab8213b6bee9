"""Device memory: blocks, who holds them, and what stands in them before anything was written.

A *block* is one allocation. Its bytes belong to the device; what the program holds is a storage of
its own over the same bytes. So two things are seen that a shared storage would hide: the moment at
which the program drops its last reference (work that is still pending keeps the bytes, not the
program's storage), and that is when a caching allocator may hand the memory out again.

Fresh memory is poison (NaN, or a byte pattern for integers), as uninitialised device memory may be
anything. A block is never handed out again; what reuse would do to a late reader is shown by
poisoning the block when it is freed (:meth:`Memory.on_free`), and reported from the trace.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable

import torch
from torch import Tensor

from repro.trace import Access

POISON_BYTE = 0xA5
POISON_LIMIT = 16 << 20  # bytes: larger blocks keep what the system gives (zeros), filling them would touch it all
Layout = tuple[int, tuple[int, ...], tuple[int, ...]]
Form = tuple[torch.Size, tuple[int, ...], torch.dtype]
"""Shape and strides, in elements, and dtype."""


class Block:
    """One allocation.

    ``base`` is the device's own tensor over the bytes; None for memory that the host brought along
    (then the program's storage is all there is).
    """

    __slots__ = ("base", "id", "nbytes", "pinned", "recorded", "stream", "used_by", "watch")

    def __init__(self, number: int, nbytes: int, stream: int, base: Tensor | None) -> None:
        self.id = number
        self.nbytes = nbytes
        self.stream = stream
        self.base = base
        self.used_by: set[int] | None = None  # streams other than ``stream`` that were given work on it
        self.recorded: set[int] | None = None  # streams named by record_stream
        self.pinned = False  # the host's own: it reads there without waiting for the device
        self.watch: object = None  # keeps the weak reference to the program's storage alive


def poison(tensor: Tensor) -> None:
    """Fill with what must not be relied on: NaN, or 0xA5 bytes."""
    if tensor.numel() == 0 or tensor.nbytes > POISON_LIMIT:
        return
    if tensor.dtype.is_floating_point or tensor.dtype.is_complex:
        tensor.fill_(float("nan"))
    elif tensor.dtype is torch.bool:
        tensor.fill_(True)
    else:
        torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage()).fill_(POISON_BYTE)


class Memory:
    """All blocks of one rank, by the storage through which the program sees them."""

    block_type: type[Block] = Block

    def __init__(
        self,
        on_alloc: Callable[[Block, torch.dtype], None],
        on_free: Callable[[Block], None],
    ) -> None:
        self._by_storage: dict[int, Block] = {}
        self._spans: dict[Form, tuple[int, Layout | None]] = {}
        self._count = 0
        self._on_alloc = on_alloc
        self._on_free = on_free
        self.on_host_memory: Callable[[Block, Tensor], None] | None = None  # memory of the host's is seen first

    def __len__(self) -> int:
        return len(self._by_storage)

    def allocate(self, shape: tuple[int, ...], stride: tuple[int, ...], dtype: torch.dtype, stream: int) -> Tensor:
        """A poisoned tensor for the program, over a block of its own. Elements in ``shape``, ``stride``."""
        base = torch.empty_strided(shape, stride, dtype=dtype)
        poison(base)
        return self.adopt(base, stream)

    def adopt(self, base: Tensor, stream: int) -> Tensor:
        """Make a block of ``base``, which nobody else may hold; gives the program's tensor over it."""
        # DLPack gives a second storage over the same bytes, which keeps them alive.
        seen: Tensor = torch._C._from_dlpack(torch._C._to_dlpack(base))
        if seen.stride() != base.stride():  # DLPack does not keep strides of size-1 or empty dimensions
            seen = seen.as_strided(base.shape, base.stride())
        self.register(seen, stream, base)
        return seen

    def register(self, seen: Tensor, stream: int, base: Tensor | None) -> Block:
        """A new block of the device: what lies behind the storage of ``seen``."""
        self._count += 1
        storage = seen.untyped_storage()
        block = self.block_type(self._count, storage.nbytes(), stream, base)
        self._register(storage, block)
        self._on_alloc(block, seen.dtype)
        return block

    def block_of(self, tensor: Tensor) -> Block:
        """The block that the tensor lies in; memory the host brought along becomes one when first seen."""
        storage = tensor.untyped_storage()
        block = self._by_storage.get(storage._cdata)
        if block is None:
            self._count += 1
            block = self.block_type(self._count, storage.nbytes(), -1, None)
            self._register(storage, block)
            if self.on_host_memory is not None:
                self.on_host_memory(block, tensor)
        return block

    def alias(self, tensor: Tensor, block: Block) -> Tensor:
        """The same elements, through the device's own storage where there is one."""
        base = block.base
        if base is None:
            return tensor.data  # a version counter of its own: the change was counted when it was issued
        if tensor.is_conj() or tensor.is_neg():
            return self._lazy(tensor, block)
        offset = tensor.storage_offset()
        if tensor.dtype is base.dtype:
            if offset == 0 and tensor.shape == base.shape and tensor.stride() == base.stride():
                return base
            return base.as_strided(tensor.shape, tensor.stride(), offset)
        flat = torch.empty(0, dtype=tensor.dtype)
        return flat.set_(base.untyped_storage(), offset, tensor.shape, tensor.stride())

    def _lazy(self, tensor: Tensor, block: Block) -> Tensor:
        """An alias of a tensor that stands for its elements' conjugates or negatives: they are not in memory."""
        if tensor.is_neg():
            return torch._neg_view(self.alias(torch._neg_view(tensor), block))
        return torch._conj(self.alias(torch._conj(tensor), block))

    def access(self, tensor: Tensor, block: Block) -> Access | None:
        """The bytes of the block that the tensor covers; None when it is empty."""
        return self._access(tensor, block, (tensor.shape, tensor.stride(), tensor.dtype))

    def place(self, tensor: Tensor) -> tuple[Block, Form, Access | None]:
        """The tensor's block, its shape, strides and dtype, and the bytes that it covers (None when it is empty)."""
        block = self._by_storage.get(tensor.untyped_storage()._cdata) or self.block_of(tensor)
        form = (tensor.shape, tensor.stride(), tensor.dtype)
        return block, form, self._access(tensor, block, form)

    def _access(self, tensor: Tensor, block: Block, form: Form) -> Access | None:
        span = self._spans.get(form)
        if span is None:
            span = self._spans[form] = _span(tensor)
        size, layout = span
        if size == 0:
            return None
        lo = int(tensor.storage_offset()) * form[2].itemsize
        return Access(block.id, lo, lo + size, layout)

    def _register(self, storage: torch.UntypedStorage, block: Block) -> None:
        key = storage._cdata
        self._by_storage[key] = block
        by_storage, on_free = self._by_storage, self._on_free

        def dropped(_: object) -> None:
            if by_storage.get(key) is block:
                del by_storage[key]
                on_free(block)
                block.base = None

        block.watch = weakref.ref(storage, dropped)


def _span(tensor: Tensor) -> tuple[int, Layout | None]:
    """Bytes from the first to behind the last element, and the layout if there are holes between."""
    if tensor.numel() == 0:
        return 0, None
    item = tensor.dtype.itemsize
    dims = sorted(
        (stride, size) for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if size > 1 and stride != 0
    )
    span = item + sum((size - 1) * stride * item for stride, size in dims)
    dense = 1
    for stride, size in dims:
        if stride > dense:
            strides = tuple(stride * item for stride, _ in dims)
            return span, (item, tuple(size for _, size in dims), strides)
        dense = max(dense, stride * (size - 1) + dense)
    return span, None
