"""Kernels that memory bounds: how many bytes they move, and how fast.

A kernel's time grows by a byte each at a part of the memory's rate, from the time of the shortest kernel on: so a small
one reaches little of the rate, and a large one most of it.
"""

from __future__ import annotations

import math
from functools import cache

from streamrace.device.hardware.facts import fact
from streamrace.device.hardware.kernels.gpu import Gpu
from streamrace.device.hardware.kernels.signature import SIZES, Signature

UP, DOWN = "cudaMemcpyAsync HtoD", "cudaMemcpyAsync DtoH"
PAGEABLE = " pageable"
"""Behind a copy's name where the host's memory is not pinned."""


def nanoseconds(one: Signature, gpu: Gpu) -> float:
    """What the bytes take, without what every kernel does."""
    if one.name.startswith((UP, DOWN)):
        pinned = not one.name.endswith(PAGEABLE)
        return one.nbytes / (gpu.host_bytes_per_ns * (1.0 if pinned else _host()))
    return moved(one) / (gpu.bytes_per_ns * gpu.memory * _part(one.name))


def moved(one: Signature) -> int:
    """Bytes read and written: what an operator does not touch of its tensors left out."""
    if one.name == "aten::embedding" and len(one.shapes) >= 3 and len(one.dtypes) == len(one.shapes):
        # Of the table only the rows that are asked for: as much as the result.
        indices, result = (math.prod(one.shapes[at]) * SIZES[one.dtypes[at]] for at in (1, -1))
        return indices + 2 * result
    return one.nbytes


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
