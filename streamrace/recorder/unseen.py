"""Notes what a run met that a recording does not see, so that nobody takes its verdict for more than it is."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from streamrace.recorder.recorder import Recorder


class Watch:
    """Watches one recording."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder

    def begin(self) -> None:
        """Begin to watch."""

    def end(self) -> None:
        """Note what was met."""
