"""Models kernels bound by memory: how many bytes they move, and at what rate.

A kernel's time starts from that of the shortest kernel and grows with its bytes at a fraction of the memory's rate: a
small kernel reaches little of the rate, a large one most of it.
"""

from __future__ import annotations

import math
from functools import cache

from streamrace.device.hardware.facts import fact
from streamrace.device.hardware.kernels.gpu import Gpu
from streamrace.device.hardware.kernels.signature import SIZES, Signature

UP, DOWN = "cudaMemcpyAsync HtoD", "cudaMemcpyAsync DtoH"
PEER = "cudaMemcpyAsync PtoP"  # from one device to another of the process
PAGEABLE = " pageable"
"""Suffix of a copy's name if the host's memory is not pinned."""


def nanoseconds(kernel: Signature, gpu: Gpu) -> float:
    """Return the time of the bytes, without the costs common to all kernels."""
    if kernel.name.startswith((UP, DOWN)):
        pinned = not kernel.name.endswith(PAGEABLE)
        return kernel.nbytes / (gpu.host_bytes_per_ns * (1.0 if pinned else _host()))
    return moved(kernel) / (gpu.bytes_per_ns * gpu.memory * _part(kernel.name))


def moved(kernel: Signature) -> int:
    """Return the bytes read and written, without the parts of tensors that the operator does not touch."""
    if kernel.name == "aten::embedding" and len(kernel.shapes) >= 3 and len(kernel.dtypes) == len(kernel.shapes):
        # Only the requested rows of the table are read: as many bytes as the result has.
        indices, result = (math.prod(kernel.shapes[at]) * SIZES[kernel.dtypes[at]] for at in (1, -1))
        return indices + 2 * result
    return kernel.nbytes


@cache
def _part(name: str) -> float:
    if "softmax" in name:
        return float(fact("kernels.rows.softmax"))
    if "norm_backward" in name:
        return float(fact("kernels.rows.norm_backward"))
    return 1.0


@cache
def _host() -> float:
    return float(fact("kernels.host.pageable"))
