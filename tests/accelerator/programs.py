"""Runs a program with and without the device; both must come to the same bits."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from tests.accelerator.world import Told


def bits(value: Any) -> Any:
    """Everything there is to compare: dtype, shape, stride and bytes of tensors, whatever they lie in."""
    if isinstance(value, Tensor):
        value = value.detach()
        plain = torch.zeros(value.shape, dtype=value.dtype).copy_(value)
        if plain.dtype.is_complex:
            plain = torch.view_as_real(plain)
        data = bytes(plain.contiguous().view(-1).view(torch.uint8).numpy()) if plain.numel() else b""
        return value.dtype, tuple(value.shape), value.stride(), data
    if isinstance(value, float):
        return struct.pack("d", value)
    if isinstance(value, dict):
        return {key: bits(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [bits(item) for item in value]
    return value


def run_plain(program: Callable[[], Any]) -> Any:
    torch.manual_seed(7)
    return bits(program())


def run_simulated(program: Callable[[], Any], **timing: Any) -> Any:
    torch.manual_seed(7)
    with Told(**timing) as device:
        result = program()
        device.finish()
        with device.quiet():
            return bits(result)


def assert_same(program: Callable[[], Any], **timing: Any) -> None:
    assert run_simulated(program, **timing) == run_plain(program)
