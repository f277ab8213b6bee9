"""Converts numbers of types that numpy lacks, bfloat16 and those of 8 bits, which the interpreter keeps as integers.

Conversions round to the nearest, ties to even, as Triton's do by default and as torch's do. Types of 8 bits take the
largest finite number for all that are larger (PTX ISA, cvt with .satfinite).
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import torch

Array = np.ndarray[Any, Any]
BFLOAT16 = "bf16"
_EIGHT_BITS = {
    "fp8e5": torch.float8_e5m2,
    "fp8e4nv": torch.float8_e4m3fn,
    "fp8e5b16": torch.float8_e5m2fnuz,
    "fp8e4b8": torch.float8_e4m3fnuz,
}
"""By the names of Triton's types. Triton's fp8e4b15 has no type of torch's."""


def is_eight_bits(name: str) -> bool:
    """Check whether this is a floating point type of 8 bits that torch has."""
    return name in _EIGHT_BITS


def to_float32(data: Array, name: str) -> Array:
    """Return the numbers that ``data`` means in the type ``name``; other types' data as they are."""
    if name == BFLOAT16:
        return (data.astype(np.uint32) << np.uint32(16)).view(np.float32)
    if name in _EIGHT_BITS:
        table: Array = _table(name)
        return np.asarray(table[data])
    return data


def from_numbers(data: Array, name: str) -> Array:
    """Return numbers in the type ``name``, which is bfloat16 or has 8 bits."""
    numbers = np.ascontiguousarray(data, np.float32)
    if name == BFLOAT16:
        bits = numbers.view(np.uint32)
        rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
        return np.where(np.isnan(numbers), np.uint32(0x7FC0), rounded).astype(np.uint16).reshape(data.shape)
    dtype = _EIGHT_BITS[name]
    largest = torch.finfo(dtype).max
    given = torch.from_numpy(np.clip(numbers, -largest, largest))  # a NaN stays one
    return given.to(dtype).view(torch.uint8).numpy().reshape(data.shape)


@functools.cache
def _table(name: str) -> Array:
    numbers = torch.arange(256, dtype=torch.uint8).view(_EIGHT_BITS[name]).to(torch.float32)
    return np.array(numbers.numpy())
