"""Compiles the C++ parts once, with the compiler found on the system, and caches the libraries.

Each library is one translation unit. The file name of a cached library holds a hash of all its inputs, so a library
that exists is up to date.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shlex
import shutil
import subprocess
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from streamrace import checkout

# NDEBUG, like torch itself: without it torch's headers lay out some objects differently (at::RecordFunction).
_FLAGS = ("-std=c++20", "-DNDEBUG", "-fPIC", "-shared", "-fvisibility=hidden", "-Wl,-z,defs,--allow-shlib-undefined")
# Selected by STREAMRACE_SANITIZE, for tests of the C++ parts. ASan's runtime must be preloaded: LD_PRELOAD=libasan.so
_SANITIZERS = {
    "": ("-O2",),
    "address": ("-O1", "-g", "-fno-omit-frame-pointer", "-fsanitize=address"),
    "undefined": ("-O1", "-g", "-fsanitize=undefined", "-fno-sanitize=vptr", "-fno-sanitize-recover=all"),
}

SCHEMA = Path(__file__).with_name("trace") / "csrc"
"""The folder of the trace layout, for C++ code that writes or reads traces (:mod:`streamrace.trace.schema`)."""


class BuildError(Exception):
    """The library cannot be built on this machine; the message says what to do."""


def flags() -> tuple[str, ...]:
    """Return the compiler flags of all C++ parts. Raises :class:`BuildError`."""
    wanted = os.environ.get("STREAMRACE_SANITIZE", "")
    if wanted not in _SANITIZERS:
        names = " or ".join(name for name in _SANITIZERS if name)
        raise BuildError(f"STREAMRACE_SANITIZE names a sanitizer of the C++ part, {names}, not '{wanted}'")
    return _FLAGS + _SANITIZERS[wanted]


def find_compiler() -> str | None:
    """Return the path of the C++ compiler (``CXX``, else g++ or c++), or None."""
    return shutil.which(os.environ.get("CXX") or "g++") or shutil.which("c++")


def library(what: str, sources: Path, name: str, options: tuple[str, ...] = ()) -> Path:
    """Return the library built from ``sources`` without headers of torch or Python; build it if it is not cached.

    ``name``: of the cache folder; ``what``: names the library in messages. Raises :class:`BuildError`.
    """
    compiler = find_compiler()
    place = place_of(sources, name, options)
    if place.exists():
        return used(place)
    if compiler is None:
        raise BuildError(f"{what} is built once with a C++ compiler, and there is none")
    units = sorted(sources.glob("*.cpp"))
    return once(place, lambda: run_compiler(what, compiler, _given(sources, options), units, [], place))


def place_of(sources: Path, name: str, options: tuple[str, ...] = ()) -> Path:
    """Return the path at which :func:`library` caches its library, built or not. Raises :class:`BuildError`."""
    return folder(name) / f"lib{name}-{digest_of(sources, find_compiler(), _given(sources, options))}.so"


def _given(sources: Path, options: tuple[str, ...]) -> list[str]:
    return [*flags(), *options, f"-I{sources}", f"-I{SCHEMA}"]


def used(place: Path) -> Path:
    """Return ``place``, marked as used.

    Libraries unused for long can be removed (:mod:`streamrace.device.cache_entries`).
    """
    with suppress(OSError):
        os.utime(place)
    return place


def once(place: Path, make: Callable[[], None]) -> Path:
    """Return ``place``; call ``make`` to create the file if no other process has done so."""
    place.parent.mkdir(parents=True, exist_ok=True)
    with (place.parent / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not place.exists():
            make()
    return place


def run_compiler(
    what: str, compiler: str, options: list[str], units: list[Path], libraries: list[str], place: Path
) -> None:
    """Compile ``units`` as one translation unit into the library ``place``, atomically. Raises :class:`BuildError`."""
    made = place.with_suffix(f".{os.getpid()}")
    command = [compiler, *options, "-x", "c++", "-", *libraries, "-o", str(made)]
    unit = "".join(f'#include "{source.name}"\n' for source in units)
    done = subprocess.run(command, input=unit, capture_output=True, text=True, check=False)
    if done.returncode:
        made.unlink(missing_ok=True)
        raise BuildError(f"building {what} failed: {shlex.join(command)}\n{done.stderr[:4000]}")
    made.replace(place)


def digest_of(sources: Path, compiler: str | None, options: list[str]) -> str:
    """Return a hash of the files in ``sources``, the options and the compiler, which determine the library."""
    digest = hashlib.sha256()
    for source in [*sorted(sources.iterdir()), *sorted(SCHEMA.iterdir())]:
        digest.update(source.name.encode() + source.read_bytes())
    digest.update(" ".join(options).encode())
    if compiler is not None:
        real = Path(compiler).resolve()
        digest.update(f"{real} {real.stat().st_size} {real.stat().st_mtime_ns}".encode())
    return digest.hexdigest()[:16]


def folder(name: str) -> Path:
    """Return the cache folder of libraries of this name: in a writable checkout, else the user's cache."""
    root = checkout.root()
    return root / "build" / name if root is not None and os.access(root, os.W_OK) else checkout.cache()
