"""Builds the engine (``csrc/``), once, with the compiler found: without headers of torch or Python."""

from __future__ import annotations

from pathlib import Path

from streamrace import compiling

_SOURCES = Path(__file__).with_name("csrc")
_OPTIONS = ("-fwrapv",)  # sums of numbers in a damaged trace may overflow


def library() -> Path:
    """Return the built library; build it if it does not exist (a few seconds). Raises :class:`BuildError`."""
    return compiling.library("the engine of happens-before", _SOURCES, "order", _OPTIONS)


def place() -> Path:
    """Return the library's path, whether it exists or not. Raises :class:`BuildError`."""
    return compiling.place_of(_SOURCES, "order", _OPTIONS)
