"""Defines a framework for the scenarios: it starts, trains a model, takes a fix, and names memory in the trace."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from streamrace.device.device import Device

Probe = Callable[[str, Tensor], None]
"""Called with a parameter's name and its value."""


class Trainer(Protocol):
    """A model in training. ``engine``: the object for a NaN watch."""

    engine: Any

    def forward(self, batch: Mapping[str, Tensor]) -> Any:
        """Return the model's outputs."""

    def evaluate(self, batch: Mapping[str, Tensor]) -> Any:
        """Return the outputs as a user evaluates between two steps: without gradients, and not in training mode."""

    def backward(self, loss: Tensor) -> None: ...

    def step(self) -> None: ...

    def gradient_norm(self) -> Tensor | float | None: ...

    def watch(self, probe: Probe) -> None:
        """Call ``probe`` with each parameter whenever it is about to be used."""

    def label(self) -> None:
        """Name the contents of memory in the trace; to be repeated, as some memory comes and goes."""

    def label_state(self) -> None:
        """Name the memory of the optimizer's state, gradients and buffers; to be repeated when there is more."""

    def edit(self, probe: Probe) -> None:
        """Probe a parameter, then double it."""

    def partitions(self) -> Iterator[tuple[str, Tensor]]:
        """Yield the parts that this rank keeps, without padding."""


class Framework(Protocol):
    """The interface of a framework's module ``adapter``.

    ``PASSING_FILES``: endings of the files whose frames only pass a call on, so that call sites are those of their
    callers.
    """

    VERSION: str
    PASSING_FILES: tuple[str, ...]

    def warm_up(self) -> None:
        """Do, once, in the process that will be forked, the start-up work of every rank."""

    def start(self, *, simulated: bool) -> str:
        """Use this process's simulated GPU, or the CPU. Returns the name of torch's backend for its collectives."""

    def put(self, fix: Any, device: Device) -> None:
        """Put a fix of this framework in its place, for as long as this process lives. Before ``initialize``."""

    def graft(self, chosen: Any) -> None:
        """Put another release's behaviour of one function into this one. Before ``initialize``."""

    def sharded(self, config: dict[str, Any]) -> AbstractContextManager[Any]:
        """Return a context that shards each parameter as a model is built, if ``config`` shards parameters."""

    def shape_of(self, parameter: nn.Parameter) -> torch.Size:
        """Return the shape of the whole parameter, even if only a part of it is here."""

    def initialize(self, *, model: nn.Module, optimizer: torch.optim.Optimizer, config: dict[str, Any]) -> Any:
        """Return the engine of this model."""

    def trainer(self, engine: Any, device: Device | None) -> Trainer:
        """Return the trainer of ``engine``, with its streams named."""

    def probe_copies(self, engine: Any) -> None:
        """Read, from here on, each copy of a parameter as soon as it is written, and wait for the value."""
