"""Derives the work of operators from a trace: from the shapes and types of their inputs.

Results are not in a trace, so only operators are covered whose results follow from their inputs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from streamrace.device.hardware.kernels import Signature
from streamrace.device.hardware.kernels.signature import SIZES

Shape = tuple[int, ...]
TYPES = {
    "float": "float32", "double": "float64", "c10::Half": "float16", "c10::BFloat16": "bfloat16", "int": "int32",
    "long int": "int64", "long": "int64", "bool": "bool", "unsigned char": "uint8", "signed char": "int8",
}  # fmt: skip
PRODUCTS = ("aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm")
# Operators with one result of the broadcast shape of all inputs, each read once.
_NAMES = (
    "add sub mul div copy relu gelu silu sigmoid tanh exp neg sqrt rsqrt pow fill zero threshold_backward "
    "gelu_backward silu_backward"
)
ELEMENTWISE = {f"aten::{name}{place}" for name in _NAMES.split() for place in ("", "_")}
ROWS = {"aten::_softmax", "aten::_softmax_backward_data", "aten::_log_softmax", "aten::_log_softmax_backward_data"}
FLASH = "aten::_scaled_dot_product_flash_attention"
# The index in "Concrete Inputs" of the flag for a causal mask.
_CAUSAL = {FLASH: 4, f"{FLASH}_backward": 11}
_ALIGNED = 16  # bytes (NVIDIA, Matrix Multiplication Background User's Guide, section Requirements to Use Tensor Cores)
_OURS = "aten::_scaled_dot_product_flash_attention_for_cpu"
_COPIES = {
    "Memcpy HtoD (Pinned": ("host", "cudaMemcpyAsync HtoD"),
    "Memcpy DtoH (Device -> Pinned": ("host", "cudaMemcpyAsync DtoH"),
    "Memcpy DtoD": ("memory", "cudaMemcpyAsync DtoD"),
}


class Placed(NamedTuple):
    """A kernel's work. ``key``: of the operator's call, which may have several kernels; None: a kernel of its own."""

    kind: str
    signature: Signature
    key: int | None


def copied(event: Mapping[str, Any]) -> Placed | None:
    """Return the work of a copy whose bytes are known, else None."""
    args = event.get("args")
    nbytes = args.get("bytes") if isinstance(args, dict) else None
    if event.get("cat") != "gpu_memcpy" or not isinstance(nbytes, int):
        return None
    for begins, (kind, name) in _COPIES.items():
        if str(event.get("name", "")).startswith(begins):
            return Placed(kind, Signature(name, nbytes * (2 if kind == "memory" else 1)), None)
    return None


def placed(event: Mapping[str, Any], kernel: str) -> Placed | str | None:
    """Return the work of the call that launched ``kernel``; None for an unknown operator, or a reason (text)."""
    name, args = str(event.get("name")), event.get("args")
    if not isinstance(args, dict):
        return None
    shapes, dtypes = _tensors(args)
    if name in PRODUCTS:
        return _product(name, shapes, dtypes, kernel, id(event))
    if name in _CAUSAL:
        return _attention(name, shapes, dtypes, args, id(event))
    if not shapes or (name not in ELEMENTWISE and name not in ROWS):
        return None
    result = _broadcast(shapes)
    if result is None:
        return None
    inputs = shapes[1:] if name in ("aten::copy_", "aten::fill_", "aten::zero_") else shapes
    kinds = dtypes[1:] if len(inputs) < len(shapes) else dtypes
    all_shapes, all_dtypes = (*inputs, result), (*kinds, dtypes[0])
    return Placed("memory", _signature(name, all_shapes, all_dtypes), id(event))


def _product(name: str, shapes: list[Shape], dtypes: list[str], kernel: str, key: int) -> Placed | str | None:
    at = 1 if "add" in name else 0
    if len(shapes) < at + 2 or min(len(shapes[at]), len(shapes[at + 1])) < 2:
        return None
    left, right = shapes[at : at + 2]
    # float32 runs with or without tensor cores: the kernel's name tells which (CUTLASS, cuBLAS).
    tensor = dtypes[at] == "float32" and any(word in kernel for word in ("tf32", "s1688", "s16816"))
    used = ["tf32" if tensor and dtype == "float32" else dtype for dtype in dtypes[: at + 2]]
    shape = (*left[:-1], right[-1])
    if any(size * SIZES[dtypes[at]] % _ALIGNED for size in (left[-1], right[-1], left[-2])):
        return f"{name} of rows that are no multiple of 16 bytes"  # these have slower kernels of their own
    return Placed("matmul", _signature(name, (*shapes[: at + 2], shape), (*used, used[at])), key)


def _attention(
    name: str, shapes: list[Shape], dtypes: list[str], args: Mapping[str, Any], key: int
) -> Placed | str | None:
    concrete = args.get("Concrete Inputs")
    at = _CAUSAL[name]
    if not isinstance(concrete, list) or len(concrete) <= at or concrete[at] not in ("True", "False"):
        return f"{name} whose mask is not recorded"  # a causal mask halves the work
    backward = name.endswith("_backward")
    need = 4 if backward else 3
    if len(shapes) < need or any(len(shape) != 4 for shape in shapes[:need]):
        return None
    our_shapes = (*shapes[:need], shapes[need - 3])
    signature = _signature(_OURS + "_backward" * backward, our_shapes, (*dtypes[:need], dtypes[0]))
    kind = "attention backward" if backward else "attention"
    return Placed(kind, signature._replace(switches=int(concrete[at] == "True")), key)


def _signature(name: str, shapes: tuple[Shape, ...], dtypes: tuple[str, ...]) -> Signature:
    sizes = {**SIZES, "tf32": 4}
    nbytes = sum(math.prod(shape) * sizes[dtype] for shape, dtype in zip(shapes, dtypes, strict=True))
    return Signature(name, nbytes, shapes, dtypes)


def _tensors(args: Mapping[str, Any]) -> tuple[list[Shape], list[str]]:
    """Return the shapes and types of the inputs that are tensors of a known type."""
    dims, types = args.get("Input Dims"), args.get("Input type")
    shapes, dtypes = [], []
    if isinstance(dims, list) and isinstance(types, list):
        for shape, dtype in zip(dims, types, strict=False):
            good = isinstance(shape, list) and all(isinstance(size, int) and size >= 0 for size in shape)
            if good and isinstance(dtype, str) and dtype in TYPES:
                shapes.append(tuple(shape))
                dtypes.append(TYPES[dtype])
    return shapes, dtypes


def _broadcast(shapes: list[Shape]) -> Shape | None:
    extents: list[int] = []
    for at in range(1, max(map(len, shapes)) + 1):
        sizes = {shape[-at] for shape in shapes if len(shape) >= at} - {1}
        if len(sizes) > 1:
            return None
        extents.append(sizes.pop() if sizes else 1)
    return tuple(reversed(extents))
