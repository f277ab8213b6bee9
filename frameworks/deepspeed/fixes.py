"""The fixes: what orders the secondary copy before the all-gather that reads it, and where.

DeepSpeed's own fix is the host-blocking ``current_stream().synchronize()`` at the end of ``_partition_param_sec``,
behind each copy (pull request 5216, release 0.13.5: "temporary fix"). Every other fix overrides it. What
it does instead stands at one of the four :class:`Where` between a copy and the all-gather that reads it:
:mod:`frameworks.deepspeed.adapter` calls an :class:`Ordering` there.

That a fix stands somewhere does not say that it is enough: which ones are is found by running them (``make
placements``). :data:`CURES` are those that left no race in any run; the tests hold them to it. Not among them:

* at the turn: during the forward pass DeepSpeed prefetches what the backward pass reads first, and what was released
  long ago in the same pass is in it (partitioned_param_coordinator.py, the prefetch in ``_fetch_sub_module_impl``);
* after each module: enough for training, but a copy at the end of ``GatheredParameters`` belongs to no module, and the
  next forward pass prefetches before its first module is released.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from simgpu.overrides import Override

ALL_GATHER = "all-gather"
"""The name of the stream on which DeepSpeed fetches parameters."""


class Where(StrEnum):
    """The places between a copy into a secondary partition and the all-gather that reads it, in the order of a step."""

    COPY = "after each copy"
    MODULE = "after each module"
    TURN = "at the turn to backward"
    FETCH = "at each fetch"


class Fix(StrEnum):
    """How the copy into the secondary partition is ordered before its all-gather."""

    NONE = "none"
    STREAM_SYNC = "stream-sync"
    EVENT = "event"
    DEVICE_SYNC = "device-sync"
    MODULE_EVENT = "module-event"
    TURN_SYNC = "turn-sync"
    TURN_EVENT = "turn-event"
    FETCH_SYNC = "fetch-sync"
    FETCH_EVENT = "fetch-event"
    COPY_EVENT = "copy-event"

    @property
    def where(self) -> Where | None:
        """Where it stands. None: nowhere."""
        return _PLACES[self][0]

    @property
    def what(self) -> str:
        """What it does there."""
        return _PLACES[self][1]


_PLACES: dict[Fix, tuple[Where | None, str]] = {
    Fix.NONE: (None, "nothing, as before 0.13.5"),
    Fix.STREAM_SYNC: (Where.COPY, "the host waits for the compute stream (stock DeepSpeed)"),
    Fix.EVENT: (Where.COPY, "the all-gather stream waits for an event behind the copy"),
    Fix.DEVICE_SYNC: (Where.COPY, "the host waits for every stream (arXiv 2407.01614)"),
    Fix.MODULE_EVENT: (Where.MODULE, "the all-gather stream waits for an event behind the module's copies"),
    Fix.TURN_SYNC: (Where.TURN, "the host waits for the compute stream"),
    Fix.TURN_EVENT: (Where.TURN, "the all-gather stream waits for the compute stream"),
    Fix.FETCH_SYNC: (Where.FETCH, "the host waits for the compute stream, if secondaries are read"),
    Fix.FETCH_EVENT: (Where.FETCH, "the all-gather stream waits for the compute stream, if secondaries are read"),
    Fix.COPY_EVENT: (Where.FETCH, "the all-gather stream waits for events behind the copies that it reads"),
}

CURES = (
    Fix.STREAM_SYNC,
    Fix.EVENT,
    Fix.DEVICE_SYNC,
    Fix.FETCH_SYNC,
    Fix.FETCH_EVENT,
    Fix.COPY_EVENT,
)


class Ordering:
    """One rank's fix at work. DeepSpeed's hooks tell it where the program is; it acts where its fix stands.

    ``overrides`` is what to put into the device's overrides: nothing for stock DeepSpeed.
    """

    def __init__(self, fix: Fix, device: Any) -> None:
        self.fix = fix
        self._device = device
        self._copied: Any = None  # the stream of a copy that nothing was done about yet
        self._events: dict[int, Any] = {}  # behind the last copy of each parameter, by its id
        self.overrides: list[Override] = []
        if fix is not Fix.STREAM_SYNC:
            self.overrides = [
                Override("stream.synchronize", "_partition_param_sec", "partition_parameters.py", self._copy)
            ]

    def _copy(self, stream: Any) -> None:
        """Instead of the stock synchronisation: a copy was given to ``stream``."""
        if self.fix is Fix.EVENT:
            self._let_wait(stream.record_event())
        elif self.fix is Fix.DEVICE_SYNC:
            self._device.synchronize()
        else:
            self._copied = stream

    def partitioned(self, parameter: Any) -> None:
        """``parameter`` was partitioned: its secondary partition was written, or was there already."""
        if self._copied is not None and self.fix is Fix.COPY_EVENT:
            self._events[id(parameter)] = self._copied.record_event()
            self._copied = None

    def released(self) -> None:
        """All parameters of a module that may be released were partitioned."""
        if self._copied is not None:  # a module that copied nothing has nothing to order
            self._let_wait(self._copied.record_event())
            self._copied = None

    def turned(self) -> None:
        """The backward pass begins."""
        self._order()

    def fetching(self, parameters: list[Any]) -> None:
        """The secondary partitions of ``parameters`` will be read by the all-gather that comes next."""
        if self.fix is not Fix.COPY_EVENT:
            self._order()
            return
        for event in {id(event): event for event in map(self._event_of, parameters) if event is not None}.values():
            self._let_wait(event)

    def _event_of(self, parameter: Any) -> Any:
        return self._events.get(id(parameter))

    def _order(self) -> None:
        compute = self._device.current_stream()
        if self.fix in (Fix.TURN_SYNC, Fix.FETCH_SYNC):
            compute.synchronize()
        else:
            self._let_wait(compute.record_event())

    def _let_wait(self, event: Any) -> None:
        """Let the all-gather stream wait; the host goes on."""
        gather = self._device.stream_called(ALL_GATHER)
        if gather is not None:  # without overlap_comm there is only one stream, and nothing to order
            gather.wait_event(event)
