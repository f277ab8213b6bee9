"""Finds timings under which training goes wrong, makes them small, and proves what it finds.

For tests (``@pytest.mark.stream_race``), written with the streams and events of ``torch.cuda``: :func:`watch` for
values that must not depend on timing.
For tests of whole programs, as ``streamrace emit-test`` writes them: :func:`check_program`.
For property tests: ``streamrace.fuzz.strategy.stream_timings``.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from streamrace.fuzz.strategy import stream_timings
    from streamrace.fuzz.testing.programs import check_program
    from streamrace.fuzz.watched import watch

__all__ = ["check_program", "stream_timings", "watch"]

_MODULES = {
    "check_program": "streamrace.fuzz.testing.programs",
    "stream_timings": "streamrace.fuzz.strategy",
    "watch": "streamrace.fuzz.watched",
}

_OF_TORCH = ("Event", "Stream", "current_stream", "default_stream", "stream", "synchronize")


def __getattr__(name: str) -> Any:
    """Imported when asked for: pytest loads the plugin, and with it this package, in every session."""
    if name in _OF_TORCH:
        # An AttributeError would reach "from streamrace.fuzz import ..." without its sentence.
        raise ImportError(f"fuzz.{name} was torch.cuda.{name}, and is gone: use torch.cuda.{name}")
    if name not in __all__:
        raise AttributeError(f"module 'fuzz' has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)
