"""Computes numbers as DeepSpeed's compiled optimizers do: C++'s ``float``."""

from __future__ import annotations

from ctypes import c_float

import torch
from torch import Tensor


def single(value: float) -> float:
    """Round ``value`` to fp32, as for a C++ function's ``float`` argument."""
    return c_float(value).value


def wide(tensor: Tensor) -> Tensor:
    """Copy to fp32, in which the kernels compute for all dtypes."""
    return tensor.to(torch.float32, copy=True)
