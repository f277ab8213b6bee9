"""Models fused (flash) attention, forward and backward. Eager attention consists of products and softmax instead.

The rate depends on the number of keys per query, plus a fixed cost per query that is expressed in keys. A causal mask
halves the work but not the fixed cost (FlashAttention-2, arXiv 2307.08691; FlashAttention-3, arXiv 2407.08608).
"""

from __future__ import annotations

import math

from streamrace.device.hardware.facts import fact
from streamrace.device.hardware.kernels.gpu import Gpu
from streamrace.device.hardware.kernels.signature import Signature

FORWARD = "aten::_scaled_dot_product_flash_attention_for_cpu"
BACKWARD = f"{FORWARD}_backward"
_CAUSAL = 1  # bit of the first switch
_HEAD = 128  # above this head size the rate changes little


def nanoseconds(kernel: Signature, gpu: Gpu) -> float | None:
    """Return the time of the arithmetic; None if the kernel is not attention."""
    backward = kernel.name == BACKWARD
    if not (backward or kernel.name == FORWARD) or len(kernel.shapes) < 4:
        return None
    at = 1 if backward else 0
    query, key, value = kernel.shapes[at : at + 3]
    causal = bool(kernel.switches & _CAUSAL)
    products = 3 * query[-1] + 2 * value[-1] if backward else query[-1] + value[-1]
    extra = fact(f"kernels.attention.extra_keys{'_causal' * causal}{'_backward' * backward}")
    keys = (key[-2] + extra) * (0.5 if causal else 1.0)
    reached = gpu.attention_backward if backward else gpu.attention
    if query[-1] < _HEAD:  # interpolated between the known sizes 64 and 128, and extrapolated below, in the logarithm
        reached *= fact("kernels.attention.small_head") ** math.log2(_HEAD / query[-1])
    dtype = kernel.dtypes[at] if at < len(kernel.dtypes) else "bfloat16"
    took: float = 2 * math.prod(query[:-1]) * keys * products / (gpu.peak(dtype) * reached)
    return took
