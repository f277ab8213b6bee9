"""Records an event behind each copy; only the all-gather that reads this copy waits for it."""

from __future__ import annotations

from typing import Any

from streamrace.frameworks.deepspeed.fixes.ordering import Ordering, Where


class CopyEvent(Ordering):
    where = Where.FETCH
    what = "the all-gather stream waits for events after the copies that it reads"
    cures = True

    def __init__(self, device: Any) -> None:
        super().__init__(device)
        self._copied: Any = None  # the stream of a copy whose parameter is not known yet
        self._events: dict[int, Any] = {}  # behind the last copy of each parameter, by the parameter's id

    def after_copy(self, stream: Any) -> None:
        self._copied = stream

    def after_partition(self, parameter: Any) -> None:
        if self._copied is not None:
            self._events[id(parameter)] = self._copied.record_event()
            self._copied = None

    def at_fetch(self, parameters: list[Any]) -> None:
        events = [self._events[id(parameter)] for parameter in parameters if id(parameter) in self._events]
        for event in {id(event): event for event in events}.values():
            self.let_wait(event)
