"""Builds models without values: only shapes, where the whole model would not fit, or nothing is computed anyway."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn


@contextmanager
def without_values() -> Iterator[None]:
    """Give modules, inside this context, parameters on the meta device as created. Buffers keep their values."""
    original = nn.Module.register_parameter

    def register(module: nn.Module, name: str, parameter: nn.Parameter | None) -> None:
        if parameter is not None and not parameter.is_meta:
            shape = torch.empty(parameter.shape, dtype=parameter.dtype, device="meta")
            parameter = nn.Parameter(shape, requires_grad=parameter.requires_grad)
        original(module, name, parameter)

    nn.Module.register_parameter = register  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        nn.Module.register_parameter = original  # type: ignore[method-assign]


def in_memory(module: nn.Module, name: str, parameter: nn.Parameter, like: torch.Tensor) -> nn.Parameter:
    """Return the parameter, or, for one on the meta device, its replacement of ``like``, which can get values."""
    if not parameter.is_meta:
        return parameter
    owner, _, last = name.rpartition(".")
    empty = nn.Parameter(like, requires_grad=parameter.requires_grad)
    module.get_submodule(owner).register_parameter(last, empty)
    return empty
