"""Builds the library (``csrc/``), once, with the compiler that is there: without headers of torch or Python."""

from __future__ import annotations

from pathlib import Path

from streamrace import compiling

_SOURCES = Path(__file__).with_name("csrc")
_OPTIONS = ("-Wl,--unresolved-symbols=ignore-all",)  # CPython's come from the interpreter that loads the library


def library() -> Path:
    """The built library; builds it when it is not there (a few seconds). Raises :class:`BuildError`."""
    return compiling.library("what orders a replay", _SOURCES, "replay", _OPTIONS)


def place() -> Path:
    """Where it is kept, whether it is there or not. Raises :class:`BuildError`."""
    return compiling.place_of(_SOURCES, "replay", _OPTIONS)
