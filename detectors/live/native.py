"""Takes the measurements of :mod:`streamrace.detectors.live.ops` on a CPU, in one pass over the memory each (C++).

Built once from ``csrc/``, when a training on a CPU is first watched and a compiler exists: takes a second. Without a
compiler torch's own operators measure, with the same bad values and checksums but more passes. Never used for a GPU.
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
_OPTIONS = ("-O3",)  # needed to vectorise loops
_KINDS = {torch.float32: 0, torch.float64: 1, torch.bfloat16: 2, torch.float16: 3}  # numbers as in csrc/measure.cpp
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
        """Return the lowest and the highest value; None if any is not finite, or if the values cannot be read here."""
        kind = _KINDS.get(values.dtype)
        if kind is None or not values.numel() or not _gapless(values):
            return None
        address = _address(values)
        if address is None:
            return None
        ends = (ctypes.c_double * 2)()
        good = self._extremes(address, values.numel(), kind, torch.get_num_threads(), ends)
        return (ends[0], ends[1]) if good else None

    def checksums(self, words: Tensor, first: int, part: int, weights: Tensor, array: Any) -> bool:
        """Write the checksum of each ``part`` of ``words``, (n,), contiguous, into ``array``, int64. ``first``: offset.

        Return False if the words cannot be read here.
        """
        address, count, width = _address(words), words.numel(), words.itemsize
        if address is None and count:
            return False
        threads, table = torch.get_num_threads(), weights.data_ptr()
        for index in range(len(array)):
            lo = min(index * part, count)
            size = min(part, count - lo)
            array[index] = self._sum((address or 0) + lo * width, size, width, first + lo, table, threads)
        return True


def _address(values: Tensor) -> int | None:
    """Return the address of the values in the host's memory; None if they cannot be read there directly."""
    if type(values) not in _PLAIN or values.device.type != "cpu" or values.is_neg() or values.is_conj():
        return None
    read: Any = values  # torch's stubs leave the function out
    try:
        return read.const_data_ptr() or None
    except (RuntimeError, AttributeError):  # within torch.func it may have no memory of its own; or an older torch
        return None


def _gapless(values: Tensor) -> bool:
    """Check whether the elements, in any order, fill the memory without gaps. Transposed elements do."""
    if values.is_contiguous():
        return True
    return values.permute(sorted(range(values.dim()), key=values.stride, reverse=True)).is_contiguous()


def _pool() -> Any:
    """Return GOMP_parallel of torch's OpenMP, by which torch runs its own operators; None without OpenMP."""
    for name, mode in (("libgomp.so.1", os.RTLD_NOLOAD | os.RTLD_NOW), (None, os.RTLD_NOW)):
        try:
            return ctypes.cast(ctypes.CDLL(name, mode).GOMP_parallel, ctypes.c_void_p)
        except (OSError, AttributeError):
            continue
    return None


@cache
def native() -> Native | None:
    """Load the library, and build it if needed. Return None if it cannot be built or loaded."""
    try:
        return Native(ctypes.CDLL(str(library("what measures for the watch", _SOURCES, "watch", _OPTIONS))))
    except (BuildError, OSError):
        return None
