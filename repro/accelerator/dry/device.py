"""The accelerator of one rank of many, the others of which are taken to do the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from repro.accelerator.costs import Clock
from repro.accelerator.device import ASKING_NS, Device, Event
from repro.accelerator.dry.collectives import MirroredProcessGroup
from repro.accelerator.dry.kernels import DryKernels, known
from repro.accelerator.dry.memory import DryMemory
from repro.accelerator.dry.reading import refusal
from repro.accelerator.kernels import Kernels
from repro.accelerator.memory import Memory
from repro.trace import HostStep, TraceRecord


class DryDevice(Device):
    """A :class:`Device` whose tensors hold nothing.

    ``trusted``: beginnings of the files whose reads of values are answered (:mod:`repro.accelerator.dry.reading`).
    Without ``answers`` no event has ever passed when it is asked (``query()``): what the program does then does not
    depend on the timing, so that its trace can be timed anew.
    """

    def __init__(
        self,
        clock: Clock,
        *,
        rank: int = 0,
        write: Callable[[list[TraceRecord]], None] | None = None,
        skipped_files: tuple[str, ...] = (),
        trusted: tuple[str, ...] = (),
        answers: bool = True,
    ) -> None:
        super().__init__(clock, rank=rank, write=write, skipped_files=skipped_files)
        self.trusted = trusted
        self._answers = answers
        self.group_type = MirroredProcessGroup

    def _memory(self) -> Memory:
        return DryMemory(self._allocated, self._freed)

    def _kernels(self) -> Kernels:
        return DryKernels(self)

    def stand_in(self, tensor: Tensor, *, printed: bool) -> str | None:
        """Text for a tensor that holds nothing, where it is printed; elsewhere :class:`ValueWanted` is raised."""
        if known([self.memory.block_of(tensor)]):
            return None
        if printed:
            return f"tensor(..., size={tuple(tensor.shape)}, dtype={tensor.dtype})"
        raise refusal(self.sites.frames(self.sites.capture()))

    def query(self, event: Event) -> bool:
        if self._answers:
            return super().query(event)
        self.timeline.now += ASKING_NS
        self.journal.note(HostStep("asked", self.timeline.now))
        return False

    def observe(self, tensors: list[Tensor], look: Callable[[list[Tensor]], None]) -> None:
        """There is nothing to look at."""

    def sight(
        self, kind: str, name: str, tensor: Tensor, look: Callable[[Tensor], Any], *, finally_: bool = False
    ) -> None:
        """There is nothing to look at."""
