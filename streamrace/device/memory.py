"""Sets the device's memory size, and reports its allocator's statistics to ``torch.cuda``.

The numbers are the allocator's own: torch reads them through its interface for allocators of any device
(``c10::DeviceAllocator``), so ``torch.accelerator`` has the same. ``STREAMRACE_MEMORY=24GiB`` gives the device another
size; the memory itself is the host's, and is used only where tensors are.
"""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Callable
from typing import Any

import torch

from streamrace.device.library import OutOfMemory, functions

_GIB = 1 << 30
_DEFAULT = 80 * _GIB  # an A100's
_UNITS = {"": 1, "B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": _GIB}


def total() -> int:
    """Return the device's memory in bytes. Raise ValueError if the environment variable is not a size."""
    text = os.environ.get("STREAMRACE_MEMORY", "")
    if not text:
        return _DEFAULT
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?) ?(B|KiB|MiB|GiB|)", text)
    if match is None or float(match[1]) == 0:
        raise ValueError(
            f"streamrace: STREAMRACE_MEMORY says how much memory the device has, as in 24GiB, not '{text}'"
        )
    return int(float(match[1]) * _UNITS[match[2]])


def overdraw() -> None:
    """Let a program use more memory than the device has: where torch would run out of it, ``num_ooms`` counts that."""
    functions().overdraw_memory()


def torch_functions() -> dict[str, Any]:
    """Return functions of ``torch._C`` about memory that a CUDA build has."""
    c: Any = torch._C
    size = total()
    fraction: dict[int, float] = {}
    observers: list[Callable[[int, int, int, int], object]] = []

    def existing(index: int) -> int:
        """Return the device's index. Raise the error of CUDA's allocator if there is no such device."""
        if index >= torch.cuda.device_count():
            raise RuntimeError(f"Invalid device argument {index}: did you call init?")
        return index

    def limit(allowed: float, index: int) -> None:
        fraction[index] = allowed
        functions().memory(index, size, int(size * allowed))

    def watched(observer: Callable[[int, int, int, int], object]) -> None:
        def notify(*figures: int) -> None:
            for observe in observers:
                observe(*figures)

        observers.append(observer)
        f = functions()
        f.out_of_memory(f.callback("out_of_memory", OutOfMemory, notify))

    parse: Callable[[str], object] = getattr(c, "_accelerator_setAllocatorSettings", lambda _: None)

    def settings(text: str) -> None:
        parse(text)
        asked = dict(re.findall(r"(\w+) *: *(\[[^]]*\]|[^,]*)", text))
        if (expandable := asked.pop("expandable_segments", None)) is not None:
            functions().expand_segments(expandable.strip() == "True")
        if not asked:
            return
        text = ",".join(f"{name}:{value}" for name, value in asked.items())
        told = "memory is reserved and used again as with torch's defaults"
        warnings.warn(f"streamrace: the allocator's settings {text} are not simulated: {told}", stacklevel=2)

    if text := os.environ.get("PYTORCH_ALLOC_CONF") or os.environ.get("PYTORCH_CUDA_ALLOC_CONF"):
        settings(text)
    limit(1.0, -1)  # of the process's own
    return {
        "_accelerator_setAllocatorSettings": settings,
        "_cuda_cudaCachingAllocator_set_allocator_settings": settings,
        "_cuda_memoryStats": lambda index: c._accelerator_getDeviceStats(existing(index)),
        "_cuda_resetPeakMemoryStats": lambda index: c._accelerator_resetPeakStats(existing(index)),
        "_cuda_resetAccumulatedMemoryStats": lambda index: c._accelerator_resetAccumulatedStats(existing(index)),
        "_cuda_emptyCache": lambda *_: c._accelerator_emptyCache(),
        "_cuda_setMemoryFraction": lambda allowed, index: limit(allowed, existing(index)),
        "_cuda_getMemoryFraction": lambda index: fraction.get(index, 1.0),
        "_cuda_attach_out_of_memory_observer": watched,
    }
