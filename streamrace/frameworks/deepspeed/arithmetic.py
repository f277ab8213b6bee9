"""Numbers as DeepSpeed's compiled optimizers have them: C++'s ``float``."""

from __future__ import annotations

from ctypes import c_float

import torch
from torch import Tensor


def single(value: float) -> float:
    """``value`` rounded to fp32, as it is where a C++ function takes a ``float``."""
    return c_float(value).value


def wide(tensor: Tensor) -> Tensor:
    """A copy in fp32, in which the kernels compute whatever they are given."""
    return tensor.to(torch.float32, copy=True)
