"""Records an event in front of each all-gather that reads secondary partitions."""

from __future__ import annotations

from typing import Any

from streamrace.frameworks.deepspeed.fixes.ordering import Ordering, Where


class FetchEvent(Ordering):
    where = Where.FETCH
    what = "the all-gather stream waits for the compute stream, if secondaries are read"
    cures = True

    def at_fetch(self, parameters: list[Any]) -> None:
        self.let_wait(self.device.current_stream().record_event())
