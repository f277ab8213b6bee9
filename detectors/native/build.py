"""Builds the engine (``csrc/``), once, with the compiler that is there: without headers of torch or Python."""

from __future__ import annotations

from pathlib import Path

from simgpu.compiling import BuildError, digest_of, find_compiler, flags, folder, once, run_compiler

_SOURCES = Path(__file__).with_name("csrc")
# CPython's functions come from the interpreter that loads the library. Sums of numbers in a damaged trace may overflow.
_OPTIONS = ("-fwrapv", "-Wl,--unresolved-symbols=ignore-all")


def library() -> Path:
    """The built library; builds it when it is not there (a few seconds). Raises :class:`BuildError`."""
    compiler = find_compiler()
    options = [*flags(), *_OPTIONS, f"-I{_SOURCES}"]
    place = folder("order") / f"liborder-{digest_of(_SOURCES, compiler, options)}.so"
    if place.exists():
        return place
    if compiler is None:
        raise BuildError("the engine of happens-before is built once with a C++ compiler, and there is none")
    units = sorted(_SOURCES.glob("*.cpp"))
    return once(place, lambda: run_compiler("the engine of happens-before", compiler, options, units, [], place))
