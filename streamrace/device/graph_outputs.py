"""Notices results of a CUDA graph that a program keeps from replay to replay, though each replay overwrites them.

A result is one tensor, whatever its replay. ``outputs.append(result)`` in a loop of replays keeps the same memory again
and again, and all of them read as the last. Nothing in the order of the accesses shows this; the references to the
tensor and to its memory do: they grow by one with each replay.
"""

from __future__ import annotations

import gc
import sys
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from streamrace.device import tracing
from streamrace.device.sanitizer import unseen
from streamrace.trace.graph_records import KeptOutput

_TENSORS = (torch.Tensor, torch.nn.Parameter)
_MORE = 2  # references from two replays: one is what a program has that assigns the result to a name


@dataclass
class _Output:
    tensor: weakref.ref[torch.Tensor]
    part: int
    first: int = -1  # references before the first replay
    told: bool = False


class Outputs:
    """The tensors in a graph's pool that outlive its capture. Follows them only while a trace is written."""

    def __init__(self, outputs: Sequence[_Output] = ()) -> None:
        self._outputs = outputs

    @classmethod
    def alive(cls) -> Outputs:
        """Return the tensors that are in graphs' pools now; none while nothing is traced."""
        if not tracing.active():
            return cls()
        with unseen():
            tensors = [one for one in gc.get_objects() if type(one) in _TENSORS and one.is_cuda]
            parts = [(tensor, torch.ops.simgpu.part(tensor)) for tensor in tensors]
        return cls([_Output(weakref.ref(tensor), part) for tensor, part in parts if part >= 0])

    def note(self) -> None:
        """Note the tensors that were kept from earlier replays; called before each replay."""
        for output in self._outputs:
            tensor = output.tensor()
            if tensor is None or output.told:
                continue
            references = _references(tensor)
            output.first = references if output.first < 0 else output.first
            if references >= output.first + _MORE:
                output.told = True
                tracing.note(KeptOutput(output.part))


def _references(tensor: torch.Tensor) -> int:
    """Return the number of references to the tensor and of tensors with its memory."""
    use: Any = torch._C._storage_Use_Count
    with unseen():
        return sys.getrefcount(tensor) + int(use(tensor.untyped_storage()._cdata))
