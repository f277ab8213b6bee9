"""What a framework is to the scenarios: it starts, trains a model, takes a fix, and names what stands in the trace."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from streamrace.device.device import Device

Probe = Callable[[str, Tensor], None]
"""Gets a parameter's name and its value."""


class Trainer(Protocol):
    """A model in training. ``engine``: what a NaN watch can be given."""

    engine: Any

    def forward(self, batch: Mapping[str, Tensor]) -> Any:
        """The model's outputs."""

    def evaluate(self, batch: Mapping[str, Tensor]) -> Any:
        """The same, as a user evaluates between two steps: without gradients, and not in training mode."""

    def backward(self, loss: Tensor) -> None: ...

    def step(self) -> None: ...

    def gradient_norm(self) -> Tensor | float | None: ...

    def watch(self, probe: Probe) -> None:
        """``probe`` gets each parameter whenever it is about to be used."""

    def label(self) -> None:
        """Tell the trace what stands where in memory; again, as some of it comes and goes."""

    def label_state(self) -> None:
        """The same for the optimizer's state, gradients and buffers; again when there is more of it."""

    def edit(self, probe: Probe) -> None:
        """Probe a parameter, then double it."""

    def partitions(self) -> Iterator[tuple[str, Tensor]]:
        """What this rank keeps, without padding."""


class Framework(Protocol):
    """What a framework's folder offers in its module ``adapter``.

    ``PASSING_FILES``: endings of the files whose frames only pass a call on, so that call sites are those of their
    callers.
    """

    VERSION: str
    PASSING_FILES: tuple[str, ...]

    def warm_up(self) -> None:
        """Do once, in the process that will be forked, what would be done in each rank."""

    def start(self, *, simulated: bool) -> str:
        """Use this process's simulated GPU, or the CPU. Gives the name of torch's backend for its collectives."""

    def put(self, fix: Any, device: Device) -> None:
        """Put a fix of this framework in its place, for as long as this process lives. Before ``initialize``."""

    def graft(self, chosen: Any) -> None:
        """Put another release's behaviour of one function into this one. Before ``initialize``."""

    def sharded(self, config: dict[str, Any]) -> AbstractContextManager[Any]:
        """Where a model is made so that each parameter is sharded at once, if ``config`` shards parameters."""

    def shape_of(self, parameter: nn.Parameter) -> torch.Size:
        """Of the whole parameter, though only a part of it is here."""

    def initialize(self, *, model: nn.Module, optimizer: torch.optim.Optimizer, config: dict[str, Any]) -> Any:
        """The engine of this model."""

    def trainer(self, engine: Any, device: Device | None) -> Trainer:
        """What trains by ``engine``, with its streams named."""

    def probe_copies(self, engine: Any) -> None:
        """From here on read each copy of a parameter as soon as it is made, and wait for the value."""
