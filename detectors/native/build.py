"""Builds the engine (``csrc/``), once, with the compiler that is there: without headers of torch or Python."""

from __future__ import annotations

from pathlib import Path

from streamrace.device import compiling

# CPython's functions come from the interpreter that loads the library. Sums of numbers in a damaged trace may overflow.
_OPTIONS = ("-fwrapv", "-Wl,--unresolved-symbols=ignore-all")


def library() -> Path:
    """The built library; builds it when it is not there (a few seconds). Raises :class:`BuildError`."""
    sources = Path(__file__).with_name("csrc")
    return compiling.library("the engine of happens-before", sources, "order", _OPTIONS)
