"""Computes calls with types that only CUDA's kernels support, and the CPU's lack, in a wider type, as CUDA does.

The device does this within one launch (``csrc/wider.h``), a replay by :class:`Wider`. Found and kept up to date by
``tests/device/test_types.py``, which checks torch's own tables of types. Operators are listed without an overload:
what holds for ``f`` holds for ``f_`` and ``f.out``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload

from streamrace.device.undeclared_writes import HIDDEN

_HALF = (torch.float16,)
_HALVES = (torch.float16, torch.bfloat16)
_INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
_COMPLEX = (torch.complex32,)
_FOURIER = ("_fft_c2c", "_fft_c2r", "_fft_r2c")
_OF_COMPLEX = (
    "acos", "acosh", "angle", "asin", "asinh", "atan", "atanh", "cos", "cosh", "div", "exp", "lerp", "log", "logaddexp",
    "pow", "prod", "rsqrt", "sigmoid", "sigmoid_backward", "sin", "sinh", "sqrt", "sum", "tan", "tanh", "tanh_backward",
    "trace", "unfold_backward",
)  # fmt: skip
_OF_HALVES = (
    "_batch_norm_with_update", "_log_softmax", "_log_softmax_backward_data", "_native_batch_norm_legit",
    "_native_batch_norm_legit_no_training", "_softmax", "_softmax_backward_data", "_upsample_bilinear2d_aa",
    "_upsample_bilinear2d_aa_backward", "avg_pool3d", "avg_pool3d_backward", "batch_norm_backward",
    "multi_margin_loss", "multi_margin_loss_backward", "multilabel_margin_loss_backward",
    "multilabel_margin_loss_forward", "native_batch_norm", "native_batch_norm_backward",
)  # fmt: skip
_OF_HALF = ("polygamma", "round", "rrelu_with_noise", "rrelu_with_noise_backward")

WIDER: dict[str, tuple[torch.dtype, ...]] = {
    **{f"aten::{name}": _COMPLEX for name in _OF_COMPLEX},
    **{f"aten::{name}": _HALVES for name in _OF_HALVES},
    **{f"aten::{name}": _HALF for name in _OF_HALF},
    **{f"aten::{name}": (*_HALF, *_COMPLEX) for name in _FOURIER},
    "aten::abs": (torch.bool,),
    "aten::histc": _INTEGERS,
    "aten::trace": (torch.bool, *_COMPLEX),
}
"""The operators, and the types that the CPU's kernel of each may lack."""

_FLOATING = {torch.float16: torch.float32, torch.bfloat16: torch.float32, torch.complex32: torch.complex64}


def install() -> None:
    """Register the operators and types with the device, before it runs any of them."""
    for name, dtypes in WIDER.items():
        for dtype in dtypes:
            torch.ops.simgpu.take_wider(name, dtype)


def called(func: OpOverload, args: list[Any], kwargs: Mapping[str, Any]) -> Callable[..., Any]:
    """Return the function that computes a call as the device does, for tensors of the host."""
    name = func._schema.name.rstrip("_")
    if name not in WIDER:
        return func._op
    kinds = [value.dtype if isinstance(value, Tensor) else value for value in (*args, *kwargs.values())]
    narrow = next((dtype for dtype in WIDER[name] if any(kind is dtype for kind in kinds)), None)
    return func._op if narrow is None else Wider(func, narrow)


class Wider:
    """Calls a kernel; from the first call that fails on, in a wider type than ``narrow``."""

    def __init__(self, func: OpOverload, narrow: torch.dtype) -> None:
        self._func, self._needed = func._op, False
        self._schema = func._schema.arguments
        wide = torch.uint8 if narrow is torch.bool else torch.float64
        self._wide = _FLOATING if narrow in _FLOATING else {narrow: wide}
        hidden = HIDDEN[func._schema.name].arguments if func._schema.name in HIDDEN else ()
        self._written = {
            arg.name for arg in self._schema if arg.name in hidden or (arg.alias_info and arg.alias_info.is_write)
        }

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not self._needed:
            try:
                return self._func(*args, **kwargs)
            except RuntimeError:
                self._needed = True
        inputs = dict(zip((arg.name for arg in self._schema), args, strict=False)) | kwargs
        widened = {name: self._widened(name, value) for name, value in inputs.items()}
        result = self._func(
            *(widened[arg.name] for arg in self._schema[: len(args)]), **{arg: widened[arg] for arg in kwargs}
        )
        for name in self._written & inputs.keys():
            if inputs[name] is not widened[name]:
                inputs[name].copy_(widened[name])
        return result

    def _widened(self, name: str, value: Any) -> Any:
        if isinstance(value, Tensor):
            return value.to(self._wide.get(value.dtype, value.dtype))
        if isinstance(value, torch.dtype):
            return self._wide.get(value, value)
        return False if name == "half_to_float" else value
