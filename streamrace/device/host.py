"""Reports to the device the accesses to pinned memory that Python makes past torch's dispatcher.

The operators that a program calls on pinned memory are seen where they are dispatched (csrc/host.cpp). ``tolist()``,
``numpy()``, DLPack and functions that store memory (``torch.save``, pickle, safetensors) bypass it: here they count as
a read by the host at that moment. A holder of an address (``numpy()``, DLPack, ``data_ptr()``) may use it at any time,
unseen: an :class:`streamrace.trace.records.Export` records this, and another one the end of the array. Libraries that
only compare addresses, such as torch itself, are not reported.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from streamrace.device.library import functions
from streamrace.device.sanitizer import unseen

# Libraries that compare tensors by address. safetensors also reads at the address: see safetensors() below.
_COMPARE = ("torch", "accelerate", "deepspeed", "diffusers", "peft", "safetensors", "transformers")
_numpy: Callable[..., Any] = torch.Tensor.numpy
_address: Callable[[torch.UntypedStorage], int] = torch.UntypedStorage.data_ptr


def install() -> None:
    """Intercept the functions that access the memory itself."""
    tensor: Any = torch.Tensor
    storage: Any = torch.UntypedStorage
    typed: Any = torch.storage.TypedStorage
    tensor.tolist = _reading(tensor.tolist, "tolist", "")
    tensor.numpy = _reading(tensor.numpy, "numpy", "numpy")
    tensor.data_ptr = _pointing(tensor.data_ptr, lambda owner: looks(owner, "", "data_ptr"))
    storage.data_ptr = _pointing(storage.data_ptr, lambda owner: looks_at(owner, "", "data_ptr"))
    typed.data_ptr = _pointing(typed.data_ptr, lambda owner: looks_at(owner._untyped_storage, "", "data_ptr"))
    _elements(storage)
    _files(storage)
    for name in ("_to_dlpack", "_to_dlpack_versioned"):
        if hasattr(torch._C, name):
            setattr(torch._C, name, _lending(getattr(torch._C, name)))
    for module in (torch, torch.utils.dlpack):
        module.to_dlpack = torch._C._to_dlpack  # type: ignore[attr-defined] # imported by name


def looks(tensor: Tensor, name: str, how: str) -> None:
    """Report a read of ``tensor`` by ``name`` (unless empty), and of its address by ``how`` (unless empty)."""
    if tensor.layout is torch.strided and type(tensor) in _PLAIN:
        torch.ops.simgpu.host_looks(tensor, name, how)


_PLAIN = (torch.Tensor, torch.nn.Parameter)  # others have no memory of their own, or wrap tensors that arrive here


def looks_at(storage: torch.UntypedStorage, name: str, how: str = "", *, at: int | None = None) -> None:
    """Report the same for all bytes of ``storage``, or for one (``at``)."""
    if storage.device.type == "cpu":
        first, count = (0, storage.nbytes()) if at is None else (at % max(storage.nbytes(), 1), 1)
        functions().host_looks_at(_address(storage) + first, count, name.encode(), how.encode())


def _reading(plain: Callable[..., Any], name: str, how: str) -> Callable[..., Any]:
    def read(self: Tensor, *args: Any, **kwargs: Any) -> Any:
        if self.is_cpu:
            looks(self, f"Tensor.{name}", how)
        result = plain(self, *args, **kwargs)
        if how and self.is_cpu and self.is_pinned():
            weakref.finalize(result, looks, self, "", f"{how} released").atexit = False
        return result

    return _named(read, plain)


def _pointing(plain: Callable[..., int], tell: Callable[[Any], None]) -> Callable[..., Any]:
    def data_ptr(self: Any) -> int:
        caller = sys._getframe(1).f_globals.get("__name__", "")
        if caller.partition(".")[0] not in _COMPARE and self.device.type in ("cpu", "cuda"):
            tell(self)
        return plain(self)

    return _named(data_ptr, plain)


def _elements(kind: Any) -> None:
    """Intercept reads of a storage's elements, single or all."""
    plain = kind.__getitem__

    def __getitem__(self: torch.UntypedStorage, index: Any) -> Any:  # noqa: N807
        if isinstance(index, int):
            looks_at(self, "UntypedStorage.__getitem__", at=index)
        return plain(self, index)

    def __iter__(self: torch.UntypedStorage) -> Iterator[int]:  # noqa: N807
        looks_at(self, "UntypedStorage.__iter__")  # a single access: an access for each byte would make the trace long
        return (plain(self, at) for at in range(self.nbytes()))

    kind.__getitem__, kind.__iter__ = _named(__getitem__, plain), _named(__iter__, kind.__iter__)


def _files(kind: Any) -> None:
    """Intercept ``torch.save`` in both its formats; pickle uses the older one."""
    plain_write, plain_record = kind._write_file, torch._C.PyTorchFileWriter.write_record
    writer: Any = torch._C.PyTorchFileWriter

    def _write_file(self: torch.UntypedStorage, *args: Any) -> None:
        looks_at(self, "torch.save")
        plain_write(self, *args)

    def write_record(self: Any, name: str, data: Any, *args: Any) -> None:
        if isinstance(data, torch.UntypedStorage):
            looks_at(data, "torch.save")
        plain_record(self, name, data, *args)

    kind._write_file, writer.write_record = _named(_write_file, plain_write), _named(write_record, plain_record)


def safetensors(module: ModuleType) -> None:
    """Intercept ``safetensors.torch``, which reads at the tensors' addresses."""
    for name in ("save", "save_file"):
        plain = getattr(module, name)

        def save(tensors: dict[str, Tensor], *args: Any, plain: Any = plain, name: str = name, **kwargs: Any) -> Any:
            for tensor in tensors.values() if isinstance(tensors, dict) else ():
                if isinstance(tensor, Tensor) and tensor.is_cpu:
                    looks(tensor, f"safetensors.torch.{name}", "")
            return plain(tensors, *args, **kwargs)

        setattr(module, name, _named(save, plain))


def _lending(plain: Callable[..., Any]) -> Callable[..., Any]:
    """Export pinned memory by way of an array: the array's end can be observed, that of a DLPack capsule cannot."""

    def to_dlpack(tensor: Tensor, *args: Any, **kwargs: Any) -> Any:
        if not (tensor.is_cpu and type(tensor) in _PLAIN and tensor.is_pinned()) or tensor.is_conj() or tensor.is_neg():
            return plain(tensor, *args, **kwargs)
        looks(tensor, "Tensor.__dlpack__", "dlpack")
        with unseen():
            array = _numpy(torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage()))
            weakref.finalize(array, looks, tensor, "", "dlpack released").atexit = False
            lent = torch.empty(0, dtype=tensor.dtype).set_(
                torch.from_numpy(array).untyped_storage(), tensor.storage_offset(), tensor.size(), tensor.stride()
            )
        return plain(lent, *args, **kwargs)

    return to_dlpack


def _named(function: Callable[..., Any], plain: Callable[..., Any]) -> Callable[..., Any]:
    function.__doc__, function.__name__ = plain.__doc__, plain.__name__
    function.__qualname__ = plain.__qualname__.replace("Base.", ".")  # TensorBase, StorageBase: torch's own bases
    return function
