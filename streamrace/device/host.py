"""What Python does with pinned memory past torch's dispatcher, reported to the device.

The operators that a program calls on pinned memory are seen where they are dispatched (csrc/host.cpp). ``tolist()`` and
``numpy()`` go past it: here they count as a read by the host, at that moment. Whoever takes an address (``numpy()``,
``data_ptr()``) may use it at any time, which nobody sees: an :class:`streamrace.device.trace.Export` says so, and
another that the array has gone. torch's own code compares addresses, and is not reported.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


def install() -> None:
    """Put it in the way of the methods of tensors that reach the memory itself."""
    tensor: Any = torch.Tensor
    tensor.tolist = _reading(tensor.tolist, "tolist", "")
    tensor.numpy = _reading(tensor.numpy, "numpy", "numpy")
    tensor.data_ptr = _pointing(tensor.data_ptr)


def looks(tensor: Tensor, name: str, how: str) -> None:
    """The host reads ``tensor`` (``name``, if it is not empty), and gets its address (``how``, if it is not empty)."""
    if tensor.layout is torch.strided and type(tensor) in _PLAIN:
        torch.ops.simgpu.host_looks(tensor, name, how)


_PLAIN = (torch.Tensor, torch.nn.Parameter)  # others have no memory of their own, or hold tensors that come here


def _reading(plain: Callable[..., Any], name: str, how: str) -> Callable[..., Any]:
    def read(self: Tensor, *args: Any, **kwargs: Any) -> Any:
        if self.is_cpu:
            looks(self, f"Tensor.{name}", how)
        made = plain(self, *args, **kwargs)
        if how and self.is_cpu and self.is_pinned():
            weakref.finalize(made, looks, self, "", f"{how} released").atexit = False
        return made

    return _named(read, plain)


def _pointing(plain: Callable[..., int]) -> Callable[..., Any]:
    def data_ptr(self: Tensor) -> int:
        caller = sys._getframe(1).f_globals.get("__name__", "")
        if not caller.startswith("torch.") and (self.is_cuda or self.is_cpu):
            looks(self, "", "data_ptr")
        return plain(self)

    return _named(data_ptr, plain)


def _named(function: Callable[..., Any], plain: Callable[..., Any]) -> Callable[..., Any]:
    function.__doc__, function.__name__ = plain.__doc__, plain.__name__
    function.__qualname__ = f"Tensor.{plain.__name__}"
    return function
