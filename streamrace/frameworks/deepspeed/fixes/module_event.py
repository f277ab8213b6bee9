"""Records one event behind all copies of a module.

Enough for training, but no cure: a copy at the end of ``GatheredParameters`` belongs to no module, and the next forward
pass prefetches before its first module is released.
"""

from __future__ import annotations

from typing import Any

from streamrace.frameworks.deepspeed.fixes.ordering import Ordering, Where


class ModuleEvent(Ordering):
    where = Where.MODULE
    what = "the all-gather stream waits for an event after the module's copies"

    def __init__(self, device: Any) -> None:
        super().__init__(device)
        self._copied: Any = None  # the stream of a copy that nothing has ordered yet

    def after_copy(self, stream: Any) -> None:
        self._copied = stream

    def after_release(self) -> None:
        if self._copied is not None:  # a module that copied nothing has nothing to order
            self.let_wait(self._copied.record_event())
            self._copied = None
