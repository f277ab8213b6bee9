"""Replaces DeepSpeed's quantizer, which exists only in CUDA, by torch's operators: for qwZ and qgZ of ZeRO++.

ZeRO++ (Wang et al., 2023) halves the all-gather of weights by INT8 (qwZ) and quarters the reduction of gradients by
INT4 and two all-to-alls, one in the node and one between nodes (qgZ). Both quantize block by block, symmetrically: for
a block with the largest magnitude m, and b bits, the step is s = 2 m / 2**b (1 where m is 0), the stored scale is s,
and a value x becomes x / s, rounded to the nearest (ties to even) and clamped to -2**(b-1) .. 2**(b-1) - 1. So

* \\|x - dequantized\\| <= s / 2, up to the result's rounding to float16, for every x <= (2**(b-1) - 1/2) s;
* larger values, up to m = 2**(b-1) s, have no number left: they are clamped, and lose up to one s (1/128 of m
  in INT8, 1/8 in INT4). Negative values do not: the extremes are pulled down on one side only.

Behaviour of the compiled module that is repeated here, as training depends on it:

* It reads its input's *memory* as float16, whatever the tensor's dtype is (pt_binding.cpp casts the pointer).
  qwZ converts first; qgZ does not, so bfloat16 gradients are misread. See scenarios/quantization.py.
* A NaN is no larger than anything (__hmax2) and becomes 0 (__float2int_rn): quantization hides it. An infinity makes
  its block's step infinite, and the whole block comes back as NaN.
* :func:`quantized_reduction` adds, and does not divide: DeepSpeed divides by the number of nodes alone.
* INT4: two values to a byte, the first in its upper half.

Scales are (blocks,) here and (blocks, 1) there: gloo's all-gather compares shapes, NCCL's counts elements.

Unrepeatable cases are refused: sizes with which the compiled module leaves part of its result unwritten, or reads
beyond its input. A GPU may differ in these: DeepSpeed compiles with --use_fast_math, so there a scale may differ in its
last bits; a block of nothing but NaN is NaN here, and on a GPU 0 where the launch has idle lanes.

Each function is one operator for the dispatcher, with its shapes known beforehand (``register_fake``): one launch on
the simulated GPU, as the compiled one is on a real one. No value is read by the host.
"""

from __future__ import annotations

import math
from enum import Enum

import torch
from torch import Tensor

NAMESPACE = "stream_races"
_BITS = (4, 8)
_LOAD = 8  # elements that a thread loads at once: a block is a multiple of it
_LARGEST = {"quantize": 16384, "swizzle_quant": 40960, "quantized_reduction": 98304}  # of a block that has a kernel


class QuantizationType(Enum):
    """The compiled module's enumeration. ZeRO++ uses the first only."""

    Symmetric = 0
    Asymmetric = 1


Symmetric = QuantizationType.Symmetric
Asymmetric = QuantizationType.Asymmetric

_library = torch.library.Library(NAMESPACE, "DEF")
_library.define("quantize(Tensor values, int groups, int bits) -> (Tensor, Tensor)")
_library.define("dequantize(Tensor quantized, Tensor scales, int groups, int bits) -> Tensor")
_library.define(
    "swizzle_quant(Tensor values, int groups, int bits, int slices, int nodes, int devices) -> (Tensor, Tensor)"
)
_library.define(
    "quantized_reduction(Tensor quantized, Tensor scales, int groups, int out_groups, int bits, int devices)"
    " -> (Tensor, Tensor)"
)


# -- what DeepSpeed calls ---------------------------------------------------------------------------------


def quantize(values: Tensor, groups: int, bits: int, kind: QuantizationType) -> tuple[Tensor, Tensor]:
    """Quantize ``values`` in ``groups`` blocks: int8 of the same shape (INT4: half as long), float32 scales (groups,).

    Raises ValueError for blocks that the compiled module cannot process.
    """
    _check("quantize", values, values.numel(), groups, bits, kind)
    quantized, scales = torch.ops.stream_races.quantize.default(values, groups, bits)
    return quantized, scales


def dequantize(quantized: Tensor, scales: Tensor, groups: int, bits: int, kind: QuantizationType) -> Tensor:
    """Dequantize to float16, of ``quantized``'s shape (INT4: twice as long). Raises ValueError as above."""
    _check("dequantize", quantized, quantized.numel() * 8 // bits, groups, bits, kind)
    result: Tensor = torch.ops.stream_races.dequantize.default(quantized, scales, groups, bits)
    return result


def swizzle_quant(
    values: Tensor, groups: int, bits: int, kind: QuantizationType, slices: int, nodes: int, devices: int
) -> tuple[Tensor, Tensor]:
    """Quantize, and order the ranks' partitions for an all-to-all in the node: device by device, then node by node.

    Partition p is that of device p % devices of node p // devices. Returns int8 (bytes,) and float32 scales (groups,),
    both in the new order; with ``slices`` the first slice of every partition comes first. Raises ValueError as above,
    and for blocks that do not divide among the partitions.
    """
    _check("swizzle_quant", values, values.numel(), groups, bits, kind)
    if groups % (nodes * devices * slices):
        parts = nodes * devices * slices
        raise ValueError(
            f"swizzle_quant: {groups} blocks do not divide among {parts} partitions; "
            f"the compiled module would leave {groups % parts} of them unwritten"
        )
    quantized, scales = torch.ops.stream_races.swizzle_quant.default(values, groups, bits, slices, nodes, devices)
    return quantized, scales


def quantized_reduction(
    quantized: Tensor,
    scales: Tensor,
    groups: int,
    out_groups: int,
    bits: int,
    kind: QuantizationType,
    devices: int,
) -> tuple[Tensor, Tensor]:
    """Sum ``devices`` quantized tensors that lie one behind the other, and quantize again in ``out_groups`` blocks.

    Added in float16, the first device's first. Returns int8 with the last dimension divided by ``devices``, and float32
    scales (out_groups,). Raises ValueError as above.
    """
    elements = quantized.numel() * 8 // bits
    _check("quantized_reduction", quantized, elements, groups, bits, kind)
    if groups % devices or quantized.shape[-1] % devices:
        raise ValueError(f"quantized_reduction: {groups} blocks do not divide among {devices} devices")
    _check("quantized_reduction", quantized, elements // devices, out_groups, bits, kind)
    reduced, out_scales = torch.ops.stream_races.quantized_reduction.default(
        quantized, scales, groups, out_groups, bits, devices
    )
    return reduced, out_scales


def _check(name: str, tensor: Tensor, elements: int, groups: int, bits: int, kind: QuantizationType) -> None:
    """Check, by shapes alone, that the compiled module has a kernel, and that the kernel reads within its memory."""
    if kind is not Symmetric or bits not in _BITS:
        raise ValueError(f"{name}: ZeRO++ quantizes symmetrically to 4 or 8 bits, not {kind.name} to {bits}")
    if not tensor.is_contiguous():
        raise ValueError(f"{name}: the compiled module reads memory in order, and this tensor is not contiguous")
    if groups < 1 or elements % groups:
        raise ValueError(f"{name}: {elements} elements do not divide into {groups} blocks")
    block = elements // groups
    if block % _LOAD or block == 0:
        raise ValueError(f"{name}: a block of {block} elements is not a multiple of the {_LOAD} that are read at once")
    if block > _LARGEST.get(name, block):
        raise ValueError(f"{name}: a block of {block} elements is longer than the {_LARGEST[name]} that are computed")


# -- on the device ----------------------------------------------------------------------------------------


def _quantize(values: Tensor, groups: int, bits: int) -> tuple[Tensor, Tensor]:
    blocks, scales = _blocks(_halves(values).view(groups, -1), bits)
    return _packed(blocks, bits).view(_shape(values, bits)), scales


def _dequantize(quantized: Tensor, scales: Tensor, groups: int, bits: int) -> Tensor:
    shape = (*quantized.shape[:-1], quantized.shape[-1] * 8 // bits)
    return _values(quantized.view(groups, -1), scales.view(groups, 1), bits).view(shape)


def _swizzle_quant(
    values: Tensor, groups: int, bits: int, slices: int, nodes: int, devices: int
) -> tuple[Tensor, Tensor]:
    blocks, scales = _blocks(_halves(values).view(groups, -1), bits)
    order = (nodes, devices, slices, groups // (nodes * devices * slices), -1)

    def swizzled(rows: Tensor) -> Tensor:
        return rows.view(order).permute(2, 1, 0, 3, 4).contiguous()

    return swizzled(_packed(blocks, bits)).view(-1), swizzled(scales).view(-1)


def _quantized_reduction(
    quantized: Tensor, scales: Tensor, groups: int, out_groups: int, bits: int, devices: int
) -> tuple[Tensor, Tensor]:
    parts = _values(quantized.view(groups, -1), scales.view(groups, 1), bits).view(devices, -1)
    total = torch.zeros_like(parts[0])
    for part in parts.unbind():  # one after the other, each sum rounded: bits depend on it
        total += part
    blocks, out_scales = _blocks(total.view(out_groups, -1), bits)
    shape = (*quantized.shape[:-1], quantized.shape[-1] // devices)
    return _packed(blocks, bits).view(shape), out_scales


def _halves(values: Tensor) -> Tensor:
    """Return the memory as float16: as many numbers as there are elements, of any dtype."""
    return values.view(-1).view(torch.float16)[: values.numel()]


def _blocks(values: Tensor, bits: int) -> tuple[Tensor, Tensor]:
    """Quantize float16 (groups, elements) to integers of ``bits`` bits in int8, and the scales (groups,)."""
    most = 1 << (_known(bits) - 1)
    values = values.float()
    finite = values.abs().nan_to_num(nan=-math.inf, posinf=math.inf, neginf=-math.inf)
    largest = finite.amax(1, keepdim=True)
    factor = torch.where(largest == 0, 1.0, 2 * most / (2 * largest))
    integers = (values * factor).nan_to_num(nan=0.0, posinf=math.inf, neginf=-math.inf).round().clamp(-most, most - 1)
    return integers.to(torch.int8), factor.reciprocal().view(-1)


def _known(bits: int) -> int:
    """Return ``bits``, if 4 or 8, as a recording may contain any value. Raises ValueError."""
    if bits not in _BITS:
        raise ValueError(f"there are integers of 4 and 8 bits here, none of {bits}")
    return bits


def _packed(integers: Tensor, bits: int) -> Tensor:
    if bits == 8:
        return integers
    pairs = integers.view(integers.shape[0], -1, 2)
    return (pairs[..., 0] << 4) | (pairs[..., 1] & 15)


def _values(packed: Tensor, scales: Tensor, bits: int) -> Tensor:
    """Return float16 (groups, elements)."""
    if _known(bits) == 4:
        packed = torch.stack((packed >> 4, (packed << 4) >> 4), -1).view(packed.shape[0], -1)
    return (packed.float() * scales).half()


def _shape(values: Tensor, bits: int) -> tuple[int, ...]:
    return (*values.shape[:-1], values.shape[-1] * bits // 8)


# -- shapes, without values -------------------------------------------------------------------------------


def _quantize_shapes(values: Tensor, groups: int, bits: int) -> tuple[Tensor, Tensor]:
    return _made(values, _shape(values, bits), groups)


def _dequantize_shapes(quantized: Tensor, scales: Tensor, groups: int, bits: int) -> Tensor:
    shape = (*quantized.shape[:-1], quantized.shape[-1] * 8 // bits)
    return quantized.new_empty(shape, dtype=torch.float16)


def _swizzle_shapes(
    values: Tensor, groups: int, bits: int, slices: int, nodes: int, devices: int
) -> tuple[Tensor, Tensor]:
    return _made(values, (values.numel() * bits // 8,), groups)


def _reduction_shapes(
    quantized: Tensor, scales: Tensor, groups: int, out_groups: int, bits: int, devices: int
) -> tuple[Tensor, Tensor]:
    return _made(quantized, (*quantized.shape[:-1], quantized.shape[-1] // devices), out_groups)


def _made(like: Tensor, shape: tuple[int, ...], groups: int) -> tuple[Tensor, Tensor]:
    return like.new_empty(shape, dtype=torch.int8), like.new_empty((groups,), dtype=torch.float32)


for _name, _kernel, _shapes in (
    ("quantize", _quantize, _quantize_shapes),
    ("dequantize", _dequantize, _dequantize_shapes),
    ("swizzle_quant", _swizzle_quant, _swizzle_shapes),
    ("quantized_reduction", _quantized_reduction, _reduction_shapes),
):
    _library.impl(_name, _kernel, "CPU")  # on the simulated GPU it is one launch, which runs this on its memory
    torch.library.register_fake(f"{NAMESPACE}::{_name}", _shapes, lib=_library)
