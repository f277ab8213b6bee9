"""Records an event behind each copy, in place of DeepSpeed's own synchronisation."""

from __future__ import annotations

from typing import Any

from streamrace.frameworks.deepspeed.fixes.ordering import Ordering, Where


class EventFix(Ordering):
    where = Where.COPY
    what = "the all-gather stream waits for an event after the copy"
    cures = True

    def after_copy(self, stream: Any) -> None:
        self.let_wait(stream.record_event())
