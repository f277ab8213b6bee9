"""Lists the fixes: what orders the secondary copy before the all-gather that reads it, and where.

DeepSpeed's own fix is the host-blocking ``current_stream().synchronize()`` at the end of ``_partition_param_sec``,
behind each copy (pull request 5216, release 0.13.5: "temporary fix"). Every other fix overrides that and acts at one of
the four :class:`Where` between a copy and the all-gather.

A fix is a file with a class of the hooks of :class:`Ordering`, and a line in :class:`Fix`. A fix need not be
sufficient: the runs of ``make placements`` show which ones are.
"""

from __future__ import annotations

from enum import StrEnum

from streamrace.frameworks.deepspeed.fixes.copy_event import CopyEvent
from streamrace.frameworks.deepspeed.fixes.device_sync import DeviceSync
from streamrace.frameworks.deepspeed.fixes.event import EventFix
from streamrace.frameworks.deepspeed.fixes.fetch_event import FetchEvent
from streamrace.frameworks.deepspeed.fixes.fetch_sync import FetchSync
from streamrace.frameworks.deepspeed.fixes.module_event import ModuleEvent
from streamrace.frameworks.deepspeed.fixes.none import Nothing
from streamrace.frameworks.deepspeed.fixes.ordering import ALL_GATHER, STOCK, Ordering, Where
from streamrace.frameworks.deepspeed.fixes.stream_sync import StreamSync
from streamrace.frameworks.deepspeed.fixes.turn_event import TurnEvent
from streamrace.frameworks.deepspeed.fixes.turn_sync import TurnSync

__all__ = ["ALL_GATHER", "CURES", "STOCK", "Fix", "Ordering", "Where"]


class Fix(StrEnum):
    """All fixes: their names for users, and the classes that implement them (``ordering``)."""

    NONE = "none", Nothing
    STREAM_SYNC = "stream-sync", StreamSync
    EVENT = "event", EventFix
    DEVICE_SYNC = "device-sync", DeviceSync
    MODULE_EVENT = "module-event", ModuleEvent
    TURN_SYNC = "turn-sync", TurnSync
    TURN_EVENT = "turn-event", TurnEvent
    FETCH_SYNC = "fetch-sync", FetchSync
    FETCH_EVENT = "fetch-event", FetchEvent
    COPY_EVENT = "copy-event", CopyEvent

    ordering: type[Ordering]

    def __new__(cls, name: str, ordering: type[Ordering] = Ordering) -> Fix:
        fix = str.__new__(cls, name)
        fix._value_ = name
        fix.ordering = ordering
        return fix

    @property
    def where(self) -> Where | None:
        """Return the place of the fix; None: nowhere."""
        return self.ordering.where

    @property
    def what(self) -> str:
        """Return the effect of the fix at its place."""
        return self.ordering.what


CURES = tuple(fix for fix in Fix if fix.ordering.cures)
