"""The fixes: what orders the secondary copy before the all-gather that reads it (DESIGN section 5).

Each fix is a rule for one place: the host-blocking ``current_stream().synchronize()`` at the end of
``_partition_param_sec`` (DeepSpeed pull request 5216, release 0.13.5: "temporary fix").
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum

from repro.accelerator.device import Device, Event, Rule, Stream

ALL_GATHER = "all-gather"
"""The name of the stream on which DeepSpeed fetches parameters."""


class Fix(StrEnum):
    """How the copy into the secondary partition is ordered before its all-gather."""

    NONE = "none"
    STREAM_SYNC = "stream-sync"
    EVENT = "event"
    DEVICE_SYNC = "device-sync"


def _nothing(device: Device, stream: Stream) -> None:
    """As before 0.13.5: nothing orders the two streams."""


def _event(device: Device, stream: Stream) -> None:
    """The all-gather stream waits for the copy; the host goes on."""
    gather = next((one for one in device.streams if one.name == ALL_GATHER), None)
    if gather is not None:  # without overlap_comm there is only one stream, and nothing to order
        event = Event()
        event.record(stream)
        gather.wait_event(event)


def _device_sync(device: Device, stream: Stream) -> None:
    """The host waits for every stream (the fix of arXiv 2407.01614)."""
    device.synchronize()


def rules(fix: Fix) -> list[Rule]:
    """What to put into ``Device.rules``. ``stream-sync`` is DeepSpeed as it is: no rule."""
    instead: dict[Fix, Callable[[Device, Stream], None]] = {
        Fix.NONE: _nothing,
        Fix.EVENT: _event,
        Fix.DEVICE_SYNC: _device_sync,
    }
    if fix not in instead:
        return []
    return [Rule("stream.synchronize", "_partition_param_sec", "partition_parameters.py", instead[fix])]
