"""Configures qwZ and qgZ in DeepSpeed, and refuses sizes that it cannot quantize.

Found in DeepSpeed 0.19.8, and refused here before a rank starts, as DeepSpeed fails with an assertion inside a rank, or
not at all, with wrong numbers:

* ``CUDAQuantizer.quantize`` (partition_parameters.py) asserts that it quantizes a multiple of 8 elements:
  a parameter's partition, where it is gathered alone. A padded partition does not pass either, as
  ``_all_gather_sequential`` cuts the padding off before it dequantizes, and then blocks and scales no longer match.
* ``all_to_all_quant_reduce`` (coalesced_collectives.py) creates as many blocks as the gradient's longer side is long,
  and assumes that they divide among the ranks: the kernel leaves the rest unwritten. So qgZ pads the vocabulary.
* ``all_to_all_quant_reduce`` looks up its process groups by node, and ``__avg_scatter_grads`` (stage3.py) reduces
  without quantizing on one node.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import nn

_MULTIPLE = 8


def options(*, qwz: bool, qgz: bool) -> dict[str, Any]:
    """Return the entries of DeepSpeed's "zero_optimization"; none for options that are off."""
    return {
        **({"zero_quantized_weights": True} if qwz else {}),
        **({"zero_quantized_gradients": True} if qgz else {}),
    }


def communication(*, qgz: bool) -> dict[str, Any]:
    """Return the entries next to "zero_optimization". The quantizer reads gradients as float16 whatever their dtype,
    and DeepSpeed by default communicates them in the parameters' dtype: bfloat16 gradients would be misread.
    """
    return {"communication_data_type": "fp16"} if qgz else {}


def refusal(parameters: Iterable[tuple[str, nn.Parameter]], *, ranks: int, qwz: bool, qgz: bool) -> str | None:
    """Return why these parameters cannot be quantized: one sentence, or None if they can."""
    for name, parameter in parameters:
        elements = parameter.numel()
        if qwz and elements % (ranks * _MULTIPLE):
            return (
                f"qwZ cannot quantize '{name}': its {elements} elements are not {ranks} partitions of a multiple of "
                f"{_MULTIPLE} (DeepSpeed's CUDAQuantizer asserts that)"
            )
        if qgz and parameter.requires_grad and parameter.dim() > 1 and elements % (2 * ranks) == 0:
            blocks = max(*parameter.shape[:2], ranks)
            if blocks % ranks or elements % blocks or elements // blocks % _MULTIPLE:
                return (
                    f"qgZ cannot quantize the gradient of '{name}': DeepSpeed makes {blocks} blocks of its {elements} "
                    f"elements, and its kernel needs them to divide among {ranks} ranks, each a multiple of {_MULTIPLE}"
                )
    return None
