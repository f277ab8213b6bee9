"""Builds the library (``csrc/``) once, with the installed compiler, without headers of torch or Python."""

from __future__ import annotations

from pathlib import Path

from streamrace import compiling

_SOURCES = Path(__file__).with_name("csrc")
_OPTIONS = ("-Wl,--unresolved-symbols=ignore-all",)  # the loading interpreter provides CPython's symbols


def library() -> Path:
    """Return the built library; build it if necessary (a few seconds). Raises :class:`BuildError`."""
    return compiling.library("what orders a replay", _SOURCES, "replay", _OPTIONS)


def place() -> Path:
    """Return the path of the library, whether it is built or not. Raises :class:`BuildError`."""
    return compiling.place_of(_SOURCES, "replay", _OPTIONS)
