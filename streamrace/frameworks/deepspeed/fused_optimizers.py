"""Replaces DeepSpeed's ``fused_adam`` and ``fused_lion`` (csrc/adam/multi_tensor_adam.cu, csrc/lion/ likewise).

The formulas are those of the kernels, in fp32, in torch operations. Each call is one operator for the dispatcher, so
one launch on the simulated GPU; the compiled code has several launches for long lists (30 tensors or 320 chunks each),
in sequence on the same stream. DeepSpeed compiles with --use_fast_math and nvcc contracts to fused multiply-adds, so a
GPU's last bits may differ.

As in the kernels, infinities and NaN propagate, and ``noop_flag`` is not read.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from streamrace.frameworks.deepspeed.arithmetic import single, wide

_library = torch.library.Library("stream_races_optimizers", "DEF")
_library.define(
    "multi_tensor_adam(Tensor[] gradients, Tensor(a!)[] parameters, Tensor(b!)[] means, Tensor(c!)[] squares, "
    "float lr, float beta1, float beta2, float epsilon, int step, bool decoupled, bool bias_correction, float decay)"
    " -> ()"
)
_library.define(
    "multi_tensor_lion(Tensor[] gradients, Tensor(a!)[] parameters, Tensor(b!)[] means, float lr, float beta1, "
    "float beta2, float decay) -> ()"
)


def multi_tensor_adam(
    chunk_size: int,
    noop_flag: Tensor,
    tensors: Sequence[Sequence[Tensor]],
    lr: float,
    beta1: float,
    beta2: float,
    epsilon: float,
    step: int,
    mode: int,
    bias_correction: int,
    weight_decay: float,
) -> None:
    """Run one step of Adam, in place. ``tensors``: gradients, parameters, their means, the means of their squares.

    ``mode`` 0: decay is added to the gradient (L2), 1: to the update (AdamW). Raises ValueError for tensors that the
    kernel would misread.
    """
    gradients, parameters, means, squares = _checked("multi_tensor_adam", tensors, 4)
    torch.ops.stream_races_optimizers.multi_tensor_adam.default(
        gradients, parameters, means, squares, lr, beta1, beta2, epsilon, step, bool(mode), bool(bias_correction),
        weight_decay,
    )  # fmt: skip


def multi_tensor_lion(
    chunk_size: int,
    noop_flag: Tensor,
    tensors: Sequence[Sequence[Tensor]],
    lr: float,
    beta1: float,
    beta2: float,
    step: int,
    weight_decay: float,
) -> None:
    """Run one step of Lion, in place. ``tensors``: gradients, parameters, their means. Raises ValueError as above."""
    gradients, parameters, means = _checked("multi_tensor_lion", tensors, 3)
    torch.ops.stream_races_optimizers.multi_tensor_lion.default(
        gradients, parameters, means, lr, beta1, beta2, weight_decay
    )


def _checked(name: str, tensors: Sequence[Sequence[Tensor]], kinds: int) -> list[list[Tensor]]:
    """Check the lists: the kernel takes addresses, and reads all as dense tensors of the first one's dtype."""
    if len(tensors) != kinds or len({len(kind) for kind in tensors}) != 1 or not tensors[0]:
        raise ValueError(f"{name}: {kinds} lists of as many tensors each are needed, at least one")
    first = tensors[0][0]
    for group in zip(*tensors, strict=True):
        if len({tensor.numel() for tensor in group}) != 1:
            raise ValueError(f"{name}: a gradient, its parameter and their state are of one size")
        for tensor in group:
            if tensor.dtype != first.dtype or tensor.device != first.device or not tensor.is_contiguous():
                raise ValueError(
                    f"{name}: the compiled kernel reads all tensors as dense ones of {first.dtype} on {first.device}, "
                    f"and this one is {tensor.dtype} on {tensor.device}"
                )
    return [list(kind) for kind in tensors]


def _adam(
    gradients: list[Tensor], parameters: list[Tensor], means: list[Tensor], squares: list[Tensor], lr: float,
    beta1: float, beta2: float, epsilon: float, step: int, decoupled: bool, bias_correction: bool, decay: float,
) -> None:  # fmt: skip
    lr, beta1, beta2, epsilon, decay = map(single, (lr, beta1, beta2, epsilon, decay))
    correction1 = single(1 - beta1**step) if bias_correction else 1.0
    correction2 = single(1 - beta2**step) if bias_correction else 1.0
    for gradient, parameter, mean, square in zip(gradients, parameters, means, squares, strict=True):
        g, p, m, v = (wide(tensor) for tensor in (gradient, parameter, mean, square))
        if not decoupled:
            g = g + decay * p
        m = beta1 * m + single(1 - beta1) * g
        v = beta2 * v + single(1 - beta2) * g * g
        update = (m / correction1) / ((v / correction2).sqrt() + epsilon)
        if decoupled:
            update = update + decay * p
        parameter.copy_(p - lr * update)
        mean.copy_(m)
        square.copy_(v)


def _lion(
    gradients: list[Tensor], parameters: list[Tensor], means: list[Tensor], lr: float, beta1: float, beta2: float,
    decay: float,
) -> None:  # fmt: skip
    lr, beta1, beta2, decay = map(single, (lr, beta1, beta2, decay))
    for gradient, parameter, mean in zip(gradients, parameters, means, strict=True):
        g, p, m = (wide(tensor) for tensor in (gradient, parameter, mean))
        towards = beta1 * m + single(1 - beta1) * g
        parameter.copy_(p * single(1 - single(lr * decay)) + torch.where(towards > 0, -lr, lr))
        mean.copy_(beta2 * m + single(1 - beta2) * g)


for _name, _kernel in (("multi_tensor_adam", _adam), ("multi_tensor_lion", _lion)):
    _library.impl(_name, _kernel, "CPU")  # on the simulated GPU it is one launch, which runs this on its memory
    _library.impl(_name, lambda *_: None, "Meta")
