"""Divides a model into units, which are gathered and released as a whole, and their parameters.

A unit is a module whose parameters are needed together: each block of a ``ModuleList``, and each other module that owns
parameters itself. Within a unit, trained and frozen parameters are two pieces: only the former has gradients.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Part:
    """A parameter, and its offset in its piece, in elements."""

    name: str
    parameter: nn.Parameter
    shape: torch.Size
    start: int

    @property
    def numel(self) -> int:
        return self.shape.numel()


@dataclass(eq=False)
class Piece:
    """The trained, or the frozen, parameters of one unit: flat, consecutive, padded.

    ``shard``: this rank's part of the values. ``whole``: all values, while gathered. ``gradient``: its part of the
    gradients, ``ready`` the part for the optimizer, ``master`` the values that the optimizer updates. ``arrived``,
    ``reduced``, ``updated``: marks of the completion of these.
    """

    name: str
    parts: tuple[Part, ...]
    numel: int
    length: int  # padded
    trained: bool
    shard: Tensor
    whole: Tensor | None = None
    gradient: Tensor | None = None
    ready: Tensor | None = None
    master: nn.Parameter | None = None
    landing: Tensor | None = None  # receives this micro-batch's gradients, where they are reduced at once
    waiting: set[str] = field(default_factory=set)  # parameters without a gradient in this micro-batch
    arrived: Any = None  # the values in `whole`
    reduced: Any = None  # the gradients in `ready`
    updated: Any = None  # the values in `shard`, by the optimizer


@dataclass(eq=False)
class Unit:
    """A unit. ``parameters``: by their names in the model. ``modules``: its users, several where weights are tied.

    ``spans``: it contains other units, so it is needed as long as they are.
    """

    name: str
    modules: list[nn.Module]
    parameters: list[tuple[str, nn.Parameter]] = field(default_factory=list)
    pieces: tuple[Piece, ...] = ()
    spans: bool = False


def units_of(model: nn.Module) -> list[Unit]:
    """Return the units in the model's order. A parameter that two modules share is the first one's."""
    blocks = {
        id(block)
        for module in model.modules()
        if isinstance(module, nn.ModuleList)
        for block in module
        if any(True for _ in block.parameters())
    }
    units: list[Unit] = []

    def visit(name: str, module: nn.Module) -> None:
        if id(module) in blocks:
            units.append(Unit(name, [module]))
            return
        at = len(units)
        own = any(True for _ in module.parameters(recurse=False))
        if own:
            units.append(Unit(name or "model", [module]))
        for child_name, child in module.named_children():
            visit(f"{name}.{child_name}" if name else child_name, child)
        if own:
            units[at].spans = len(units) > at + 1

    visit("", model)
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    owners: dict[int, Unit] = {}
    for unit in units:
        (module,) = unit.modules
        for parameter in module.parameters(recurse=not unit.spans):
            owner = owners.setdefault(id(parameter), unit)
            if owner is unit:
                unit.parameters.append((names[id(parameter)], parameter))
            elif module not in owner.modules:
                owner.modules.append(module)
    return [unit for unit in units if unit.parameters]
