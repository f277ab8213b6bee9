"""Compares what the device gives in a narrow type with the wider type's result on the CPU. Nothing here is asserted."""

from __future__ import annotations

from typing import Any

import torch
from samples import Raised, Sample, forward, in_place, into
from torch import Tensor
from torch.utils import _pytree as pytree

_WIDE = {
    torch.float16: torch.float32,
    torch.bfloat16: torch.float32,
    torch.complex32: torch.complex64,
    torch.bool: torch.uint8,
    torch.float32: torch.float64,
    torch.complex64: torch.complex128,
}
_ROUNDED = {"logaddexp", "pow", "prod"}  # whose gradient is made by several operators, each of which may overflow
# Largest difference from the wider type's result, relative to the largest value: rounding, once for each kernel.
_ROUNDING = {
    torch.float16: 4e-3,
    torch.bfloat16: 3e-2,
    torch.complex32: 4e-3,
    torch.float32: 1e-5,
    torch.complex64: 1e-5,
}


def wider(sample: Sample) -> Sample:
    """The same call in the type in which CUDA's kernels compute."""

    def one(value: Any) -> Any:
        if isinstance(value, Tensor):
            return value.detach().to(wide(value.dtype)).requires_grad_(value.requires_grad)
        return wide(value) if isinstance(value, torch.dtype) else value

    def wide(dtype: torch.dtype) -> torch.dtype:
        halves = (torch.float16, torch.complex32)
        mine = dtype is sample.dtype or (dtype in halves and sample.dtype in halves)
        return _WIDE.get(dtype, torch.float64) if mine else dtype

    made = object.__new__(Sample)
    made.op, made.dtype, made.number = sample.op, sample.dtype, sample.number
    made.arguments, made.keywords = pytree.tree_map(one, (sample.arguments, sample.keywords))
    return made


def unlike(here: Any, there: Any, sample: Sample, roundings: int) -> str:
    """How what the device gives differs from the wider type's result on the CPU, by more than so many roundings."""
    if isinstance(there, Raised) or isinstance(here, Raised):
        both = isinstance(there, Raised) and isinstance(here, Raised)
        return "" if both else f"{here} / {there}"
    one, other = ([x for x in pytree.tree_leaves(made) if isinstance(x, Tensor)] for made in (here, there))
    if len(one) != len(other):
        return f"{len(one)} / {len(other)} tensors"
    for wide, narrow in zip(one, other, strict=True):
        if wide.shape != narrow.shape:
            return f"shape {tuple(wide.shape)} / {tuple(narrow.shape)}"
        back = {wide: dtype for dtype, wide in _WIDE.items() if dtype is sample.dtype} | {torch.float64: sample.dtype}
        if sample.dtype is torch.complex32:
            back[torch.float32] = torch.float16
        if sample.dtype is torch.float16:
            back[torch.complex64] = torch.complex32
        if narrow.dtype is not back.get(wide.dtype, wide.dtype):
            return f"type {wide.dtype} / {narrow.dtype}"
        a, b = wide.detach(), narrow.detach().cpu().to(wide.dtype)
        a = a.to(narrow.dtype).to(wide.dtype)  # what is too large for the narrow type
        if sample.dtype not in _ROUNDING:
            if not torch.equal(a, b):
                return f"{a.flatten()[:4]} / {b.flatten()[:4]}"
            continue
        largest = a[a.isfinite()].abs().max().item() if a.isfinite().any() else 0.0
        allowed = roundings * _ROUNDING[sample.dtype] * max(largest, 1e-3)
        if not torch.allclose(a, b, rtol=0, atol=allowed, equal_nan=True):
            return f"{a.flatten()[:4]} / {b.flatten()[:4]}"
    return ""


def departures(sample: Sample) -> list[str]:
    """What of a sample on the device is not what the wider type's is on the CPU, but for rounding."""
    op, wide = sample.op, wider(sample)
    found: list[str] = []

    def compare(how: str, here: Any, there: Any, roundings: int = 1) -> None:
        if told := unlike(here, there, sample, roundings):
            found.append(f"{sample}, {how}: {told}")

    (here, slopes), (there, its_slopes) = forward(wide, "cpu"), forward(sample, "cuda")
    compare("forward", here, there)
    if not (sample.dtype is torch.complex32 and op.name in _ROUNDED):
        compare("backward", slopes, its_slopes, 3)  # of several operators, which may subtract what was rounded
    if op.inplace_variant:
        compare("in place", in_place(wide, "cpu"), in_place(sample, "cuda"))
    if op.supports_out:
        like = pytree.tree_map(lambda one: torch.zeros(one.shape, dtype=one.dtype), there)
        for empty in (False, True):
            compare("out=", into(wide, "cpu", here, empty=empty), into(sample, "cuda", like, empty=empty))
    return found
