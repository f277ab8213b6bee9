"""Shows that a long operation goes on: a count on a terminal, and elsewhere a line at least every ten seconds."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from types import TracebackType

from rich.console import Console
from rich.text import Text

EVERY_S = 10.0


class Working:
    """The ``activity`` in a ``with`` block. :meth:`update` says how far it is.

    ``clock``: seconds. ``ended``: waits so many seconds for the end of the block, and returns whether it came.
    """

    def __init__(
        self,
        console: Console,
        activity: str,
        *,
        clock: Callable[[], float] = time.monotonic,
        ended: Callable[[float], bool] | None = None,
    ) -> None:
        self._console, self._activity, self._clock = console, activity, clock
        self._progress = ""
        self._end = threading.Event()
        self._ended = ended or self._end.wait
        self._status = console.status(Text(activity)) if console.is_terminal else None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._began = clock()

    def update(self, progress: str) -> None:
        """Set how far the activity is: "2 of 8 races"."""
        self._progress = progress
        if self._status is not None:
            self._status.update(Text(f"{self._activity}: {progress}"))

    def beat(self) -> None:
        """Print a line every ten seconds until the block ends."""
        while not self._ended(EVERY_S):
            progress = f": {self._progress}" if self._progress else ""
            line = f"  {self._clock() - self._began:.0f} s: {self._activity}{progress}"
            self._console.print(Text(line), soft_wrap=True)

    def _run(self) -> None:
        signal.pthread_sigmask(
            signal.SIG_BLOCK, signal.valid_signals()
        )  # they interrupt what the main thread waits for
        self.beat()

    def __enter__(self) -> Working:
        if self._status is not None:
            self._status.start()
        else:
            self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._end.set()
        if self._status is not None:
            self._status.stop()
        else:
            self._thread.join()
