"""The measurements of :mod:`streamrace.detectors.live.ops` on a CPU, each in one pass over the memory: C++ (``csrc/``).

Built once, when a training on a CPU is first watched and there is a compiler: a second. Where there is none torch's own
operators measure: what is bad and each checksum are the same, with more passes. A GPU's values never come here.
"""

from __future__ import annotations

import ctypes
import os
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from streamrace.compiling import BuildError, library

_SOURCES = Path(__file__).with_name("csrc")
_OPTIONS = ("-O3",)  # loops are only made wide by it
_KINDS = {torch.float32: 0, torch.float64: 1, torch.bfloat16: 2, torch.float16: 3}  # of csrc/measure.cpp
_PLAIN = (Tensor, nn.Parameter)  # a subclass may have its values elsewhere, or none


class Native:
    """The library's functions. Thread-safe; they share their work among torch's own threads."""

    def __init__(self, loaded: ctypes.CDLL) -> None:
        handle, number = ctypes.c_void_p, ctypes.c_longlong
        loaded.watch_threads.argtypes = [handle]
        loaded.watch_threads.restype = None
        self._extremes: Any = loaded.watch_extremes
        self._extremes.argtypes = [handle, number, ctypes.c_int, ctypes.c_int, handle]
        self._sum: Any = loaded.watch_sum
        self._sum.argtypes = [handle, number, ctypes.c_int, number, handle, ctypes.c_int]
        self._sum.restype = number
        loaded.watch_threads(_pool())

    def extremes(self, values: Tensor) -> tuple[float, float] | None:
        """The lowest and the highest value; None where one is not finite, or where the values cannot be read here."""
        kind = _KINDS.get(values.dtype)
        if kind is None or not values.numel() or not _gapless(values):
            return None
        address = _address(values)
        if address is None:
            return None
        ends = (ctypes.c_double * 2)()
        good = self._extremes(address, values.numel(), kind, torch.get_num_threads(), ends)
        return (ends[0], ends[1]) if good else None

    def checksums(self, words: Tensor, first: int, part: int, weights: Tensor, held: Any) -> bool:
        """Into ``held``, int64, those of ``words``, (n,), contiguous: one for each ``part``. ``first``: their place.

        False where they cannot be read here.
        """
        address, count, width = _address(words), words.numel(), words.itemsize
        if address is None and count:
            return False
        threads, table = torch.get_num_threads(), weights.data_ptr()
        for index in range(len(held)):
            lo = min(index * part, count)
            size = min(part, count - lo)
            held[index] = self._sum((address or 0) + lo * width, size, width, first + lo, table, threads)
        return True


def _address(values: Tensor) -> int | None:
    """Where the values lie in memory of the host, as they are; None where they do not."""
    if type(values) not in _PLAIN or values.device.type != "cpu" or values.is_neg() or values.is_conj():
        return None
    read: Any = values  # torch's stubs leave the function out
    try:
        return read.const_data_ptr() or None
    except (RuntimeError, AttributeError):  # within torch.func it may have no memory of its own; or an older torch
        return None


def _gapless(values: Tensor) -> bool:
    """Do its elements, in whatever order, fill the memory from the first on? Transposed ones do."""
    if values.is_contiguous():
        return True
    return values.permute(sorted(range(values.dim()), key=values.stride, reverse=True)).is_contiguous()


def _pool() -> Any:
    """GOMP_parallel of the OpenMP that torch brought along, by which it runs its own operators; None without one."""
    for name, mode in (("libgomp.so.1", os.RTLD_NOLOAD | os.RTLD_NOW), (None, os.RTLD_NOW)):
        try:
            return ctypes.cast(ctypes.CDLL(name, mode).GOMP_parallel, ctypes.c_void_p)
        except (OSError, AttributeError):
            continue
    return None


@cache
def native() -> Native | None:
    """Builds it where that was not done yet. None where it cannot be built or loaded."""
    try:
        return Native(ctypes.CDLL(str(library("what measures for the watch", _SOURCES, "watch", _OPTIONS))))
    except (BuildError, OSError):
        return None
