"""Builds the library (``csrc/``), once, with the compiler that is there: without headers of torch or Python."""

from __future__ import annotations

from pathlib import Path

from simgpu.compiling import BuildError, digest_of, find_compiler, flags, folder, once, run_compiler

_SOURCES = Path(__file__).with_name("csrc")


def library() -> Path:
    """The built library; builds it when it is not there (a few seconds). Raises :class:`BuildError`."""
    compiler = find_compiler()
    options = [*flags(), f"-I{_SOURCES}"]
    place = folder("replay") / f"libreplay-{digest_of(_SOURCES, compiler, options)}.so"
    if place.exists():
        return place
    if compiler is None:
        raise BuildError("what orders a replay is built once with a C++ compiler, and there is none")
    units = sorted(_SOURCES.glob("*.cpp"))
    return once(place, lambda: run_compiler("what orders a replay", compiler, options, units, [], place))
