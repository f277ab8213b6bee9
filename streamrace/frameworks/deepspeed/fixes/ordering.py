"""Defines a fix: a class with hooks, which ``deepspeed.hooks`` calls from DeepSpeed's own functions."""

from __future__ import annotations

from enum import StrEnum
from typing import Any, ClassVar

ALL_GATHER = "all-gather"
"""The name of the stream on which DeepSpeed fetches parameters."""


STOCK = (
    "deepspeed/runtime/zero/partition_parameters.py:1951 Init._partition_param_sec: "
    "get_accelerator().current_stream().synchronize()"
)
"""DeepSpeed's own synchronisation, in the pinned release; all fixes remove it, except those that keep it."""


class Where(StrEnum):
    """The places between a copy into a secondary partition and the all-gather that reads it, in the order of a step."""

    COPY = "after each copy"
    MODULE = "after each module"
    TURN = "at the turn to backward"
    FETCH = "at each fetch"


class Ordering:
    """One rank's fix at work. Only the hooks that a fix overrides are put into DeepSpeed.

    ``where``: its place (None: nowhere); ``what``: its effect there; ``cures``: it left no race in any run, and the
    tests check that. ``stock``: DeepSpeed's own synchronisation stays, instead of :meth:`after_copy`.
    """

    where: ClassVar[Where | None] = None
    what: ClassVar[str]
    cures: ClassVar[bool] = False
    stock: ClassVar[bool] = False

    def __init__(self, device: Any) -> None:
        self.device = device

    def after_copy(self, stream: Any) -> None:
        """Run after a copy into a secondary partition was issued to ``stream``."""

    def after_partition(self, parameter: Any) -> None:
        """Run after ``parameter`` was partitioned: its secondary partition was written, or existed already."""

    def after_release(self) -> None:
        """Run after all releasable parameters of a module were partitioned."""

    def at_turn(self) -> None:
        """Run at the beginning of the backward pass."""

    def at_fetch(self, parameters: list[Any]) -> None:
        """Run before an all-gather that reads the secondary partitions of ``parameters``."""

    def overrides(self, hook: str) -> bool:
        """Check whether this fix overrides ``hook``."""
        return getattr(type(self), hook) is not getattr(Ordering, hook)

    def let_wait(self, event: Any) -> None:
        """Let the all-gather stream wait for ``event``; the host goes on."""
        gather = self.device.stream_called(ALL_GATHER)
        if gather is not None:  # without overlap_comm there is only one stream, and nothing to order
            gather.wait_event(event)
