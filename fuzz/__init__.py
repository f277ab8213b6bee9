"""Finds timings under which training goes wrong, makes them small, and proves what it finds.

For tests of one's own (``@pytest.mark.stream_race``): the streams and events of ``torch.cuda``, and :func:`watch` for
values that must not depend on timing.
For property tests: ``fuzz.strategy.stream_timings``.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fuzz.strategy import stream_timings
    from fuzz.streams import Event, Stream, current_stream, default_stream, stream, synchronize, watch

__all__ = [
    "Event",
    "Stream",
    "current_stream",
    "default_stream",
    "stream",
    "stream_timings",
    "synchronize",
    "watch",
]


def __getattr__(name: str) -> Any:
    """Imported when asked for: pytest loads the plugin, and with it this package, in every session."""
    if name not in __all__:
        raise AttributeError(f"module 'fuzz' has no attribute {name!r}")
    return getattr(import_module("fuzz.strategy" if name == "stream_timings" else "fuzz.streams"), name)
