"""Replaces DeepSpeed's ``cpu_adam``, ``cpu_lion`` and ``cpu_adagrad``, the optimizers of offloaded state.

The compiled optimizers take addresses, so their accesses to pinned memory would not be seen. These are torch operations
on the host, each of which is seen. The formulas are those of the scalar code (``Step_1`` in
csrc/adam/cpu_adam_impl.cpp, csrc/lion/cpu_lion_impl.cpp, csrc/adagrad/cpu_adagrad.cpp), in fp32 for all dtypes. The
compiled optimizers use fused multiply-adds where the processor has them, so their last bits may differ from machine to
machine; these do not.

A number identifies an optimizer, as in DeepSpeed. ZenFlow's functions, whose optimizer is another process, are missing.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from streamrace.frameworks.deepspeed.arithmetic import single, wide

_decoupled: dict[int, bool] = {}  # Adam's, by number
_adagrads: set[int] = set()
_lions: set[int] = set()


def create_adam(
    number: int, lr: float, beta1: float, beta2: float, eps: float, weight_decay: float, adamw_mode: bool, log: bool
) -> int:
    """Create Adam, or with ``adamw_mode`` AdamW. All other arguments come with each update."""
    _decoupled[number] = adamw_mode
    return 0


def destroy_adam(number: int) -> int:
    """Destroy the optimizer."""
    _decoupled.pop(number, None)
    return 0


@torch.no_grad()
def adam_update(
    number: int,
    step: int,
    lr: float,
    beta1: float,
    beta2: float,
    eps: float,
    weight_decay: float,
    bias_correction: bool,
    parameter: Tensor,
    gradient: Tensor,
    mean: Tensor,
    square: Tensor,
) -> int:
    """Run step ``step`` (from 1), in place. Tensors of one size on the host: fp32, or fp16 and bf16 with such state."""
    lr, beta1, beta2, eps, decay = map(single, (lr, beta1, beta2, eps, weight_decay))
    correction1 = single(1 - single(beta1**step)) if bias_correction else 1.0
    correction2 = single(1 / math.sqrt(1 - single(beta2**step))) if bias_correction else 1.0
    p, g = wide(parameter), wide(gradient)
    if decay > 0 and not _decoupled[number]:
        g = p * decay + g
    m = g * single(1 - beta1) + wide(mean) * beta1
    v = g * g * single(1 - beta2) + wide(square) * beta2
    update = m / (v.sqrt() * correction2 + eps)
    if decay > 0 and _decoupled[number]:
        p = p + single(-lr * decay) * p
    parameter.copy_(update * single(-lr / correction1) + p)
    mean.copy_(m)
    square.copy_(v)
    return 0


@torch.no_grad()
def adam_rollback(
    number: int,
    step: int,
    lr: float,
    beta1: float,
    beta2: float,
    eps: float,
    weight_decay: float,
    bias_correction: bool,
    parameter: Tensor,
    gradient: Tensor,
    mean: Tensor,
    square: Tensor,
) -> int:
    """Undo AdamW's step ``step``, in place; fp32 only (``adamw_rollback_inplace``). -1: other dtypes."""
    if any(tensor.dtype != torch.float32 for tensor in (parameter, gradient, mean, square)):
        return -1
    lr, beta1, beta2, eps, decay = map(single, (lr, beta1, beta2, eps, weight_decay))
    m_hat, v_hat = mean / single(1 - single(beta1**step)), square / single(1 - single(beta2**step))
    back = (parameter + lr * m_hat / (v_hat.sqrt() + eps)) / single(1 - single(lr * decay))
    parameter.copy_(torch.where(back.isfinite(), back, 0.0))
    mean.copy_((mean - single(1 - beta1) * gradient) / beta1)
    square.copy_((square - single(1 - beta2) * gradient * gradient) / beta2)
    return 0


def create_lion(number: int, lr: float, beta1: float, beta2: float, weight_decay: float, log: bool) -> int:
    """Create Lion. All of its arguments come with each update."""
    _lions.add(number)
    return 0


def destroy_lion(number: int) -> int:
    """Destroy the optimizer."""
    _lions.discard(number)
    return 0


@torch.no_grad()
def lion_update(
    number: int,
    step: int,
    lr: float,
    beta1: float,
    beta2: float,
    weight_decay: float,
    parameter: Tensor,
    gradient: Tensor,
    mean: Tensor,
) -> int:
    """Run a step in place. Tensors as for Adam."""
    lr, beta1, beta2, decay = map(single, (lr, beta1, beta2, weight_decay))
    p, g, m = wide(parameter), wide(gradient), wide(mean)
    towards = g * single(1 - beta1) + m * beta1
    if decay > 0:
        p = p * single(1 - single(lr * decay))
    parameter.copy_(p - torch.copysign(torch.tensor(lr), towards))
    mean.copy_(g * single(1 - beta2) + m * beta2)
    return 0


def create_adagrad(number: int, lr: float, eps: float, weight_decay: float, log: bool) -> int:
    """Create Adagrad. All of its arguments come with each update."""
    _adagrads.add(number)
    return 0


def destroy_adagrad(number: int) -> int:
    """Destroy the optimizer."""
    _adagrads.discard(number)
    return 0


@torch.no_grad()
def adagrad_update(
    number: int,
    step: int,
    lr: float,
    eps: float,
    weight_decay: float,
    parameter: Tensor,
    gradient: Tensor,
    square: Tensor,
) -> int:
    """Run a step in place. Tensors as for Adam. The compiled scalar code leaves the update in the gradient, unread."""
    lr, eps, decay = map(single, (lr, eps, weight_decay))
    p, g = wide(parameter), wide(gradient)
    if decay > 0:
        g = p * decay + g
    v = wide(square) + g * g
    parameter.copy_(g / (v.sqrt() + eps) * -lr + p)
    square.copy_(v)
    return 0
