"""Wraps the device that holds the watched values: a device asynchronous to the host, or the CPU itself.

The same few calls for ``torch.cuda``, for the accelerator that DeepSpeed runs on (the simulated one
too: it is known through DeepSpeed's interface alone), and for the CPU, where every call is done when
it returns.
"""

from __future__ import annotations

import sys
from collections.abc import Hashable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

import torch
from torch import Tensor, nn


class Hardware(Protocol):
    """The device functions that the watch needs."""

    asynchronous: bool

    def current_stream(self) -> Hashable:
        """Return the stream to which the calling thread gives work."""

    def on(self, stream: Any) -> AbstractContextManager[Any]:
        """Return a context in which work is issued to ``stream``."""

    def pinned(self, tensor: Tensor) -> Tensor:
        """Return the tensor in pinned memory of the host, to which the device can write."""

    def synchronize(self) -> None:
        """Block the host until the device has nothing left to do. Only when the watch ends."""


class Synchronous:
    """The CPU: no streams, and nothing is ever pending."""

    asynchronous = False

    def current_stream(self) -> Hashable:
        return None

    def on(self, stream: Any) -> AbstractContextManager[Any]:
        return nullcontext()

    def pinned(self, tensor: Tensor) -> Tensor:
        return tensor

    def synchronize(self) -> None:
        return


class Cuda:
    """``torch.cuda``, without DeepSpeed."""

    asynchronous = True

    def current_stream(self) -> Hashable:
        return torch.cuda.current_stream()

    def on(self, stream: Any) -> AbstractContextManager[Any]:
        return torch.cuda.stream(stream)

    def pinned(self, tensor: Tensor) -> Tensor:
        return tensor.pin_memory()

    def synchronize(self) -> None:
        torch.cuda.synchronize()


class OfDeepSpeed:
    """The accelerator that DeepSpeed runs on (``deepspeed.accelerator``)."""

    asynchronous = True

    def __init__(self, accelerator: Any) -> None:
        self._accelerator = accelerator

    def current_stream(self) -> Hashable:
        stream: Hashable = self._accelerator.current_stream()
        return stream

    def on(self, stream: Any) -> AbstractContextManager[Any]:
        entered: AbstractContextManager[Any] = self._accelerator.stream(stream)
        return entered

    def pinned(self, tensor: Tensor) -> Tensor:
        pinned: Tensor = self._accelerator.pin_memory(tensor)
        return pinned

    def synchronize(self) -> None:
        self._accelerator.synchronize()


def hardware_of(model: nn.Module) -> Hardware:
    """Return the hardware that the model's parameters are on."""
    deepspeed = sys.modules.get("deepspeed.accelerator")
    if deepspeed is not None:
        accelerator = deepspeed.get_accelerator()
        if not accelerator.is_synchronized_device():
            return OfDeepSpeed(accelerator)
    if any(parameter.is_cuda for parameter in model.parameters()):
        return Cuda()
    return Synchronous()
