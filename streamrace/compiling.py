"""How what is written in C++ is compiled: once, with the compiler that is there, and kept.

One unit of translation. What was built is kept under a name that is a hash of all that it depends on, so nothing needs
to be compared when it is found.
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

# NDEBUG as torch itself is built: its headers lay objects out differently without it (at::RecordFunction).
_FLAGS = ("-std=c++20", "-DNDEBUG", "-fPIC", "-shared", "-fvisibility=hidden", "-Wl,-z,defs,--allow-shlib-undefined")
# STREAMRACE_SANITIZE names one, for tests of the C++ part. ASan's runtime has to be there first: LD_PRELOAD=libasan.so
_SANITIZERS = {
    "": ("-O2",),
    "address": ("-O1", "-g", "-fno-omit-frame-pointer", "-fsanitize=address"),
    "undefined": ("-O1", "-g", "-fsanitize=undefined", "-fno-sanitize=vptr", "-fno-sanitize-recover=all"),
}

SCHEMA = Path(__file__).with_name("trace") / "csrc"
"""The layout of a trace, for whoever writes or reads one (:mod:`streamrace.trace.schema`)."""


class BuildError(Exception):
    """The library cannot be built here; the message says what to do."""


def flags() -> tuple[str, ...]:
    """How all that is written in C++ is compiled. Raises :class:`BuildError`."""
    wanted = os.environ.get("STREAMRACE_SANITIZE", "")
    if wanted not in _SANITIZERS:
        names = " or ".join(name for name in _SANITIZERS if name)
        raise BuildError(f"STREAMRACE_SANITIZE names a sanitizer of the C++ part, {names}, not '{wanted}'")
    return _FLAGS + _SANITIZERS[wanted]


def find_compiler() -> str | None:
    """The C++ compiler that is there; ``CXX`` says which."""
    return shutil.which(os.environ.get("CXX") or "g++") or shutil.which("c++")


def library(what: str, sources: Path, name: str, options: tuple[str, ...] = ()) -> Path:
    """The library that is made of ``sources`` without headers of torch or Python; builds it where it is not there.

    ``name`` is its folder's, ``what`` says what it is (the engine of happens-before). Raises :class:`BuildError`.
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
    """Where :func:`library` keeps what it builds, whether it is there or not. Raises :class:`BuildError`."""
    return folder(name) / f"lib{name}-{digest_of(sources, find_compiler(), _given(sources, options))}.so"


def _given(sources: Path, options: tuple[str, ...]) -> list[str]:
    return [*flags(), *options, f"-I{sources}", f"-I{SCHEMA}"]


def used(place: Path) -> Path:
    """``place``, which is used now: what nobody has used for long can be removed (:mod:`streamrace.device.kept`)."""
    with suppress(OSError):
        os.utime(place)
    return place


def once(place: Path, make: Callable[[], None]) -> Path:
    """``place``, which ``make`` makes where no other process has done so."""
    place.parent.mkdir(parents=True, exist_ok=True)
    with (place.parent / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not place.exists():
            make()
    return place


def run_compiler(
    what: str, compiler: str, options: list[str], units: list[Path], libraries: list[str], place: Path
) -> None:
    """Compile ``units`` as one into the library ``place``, whole or not at all. Raises :class:`BuildError`."""
    made = place.with_suffix(f".{os.getpid()}")
    command = [compiler, *options, "-x", "c++", "-", *libraries, "-o", str(made)]
    unit = "".join(f'#include "{source.name}"\n' for source in units)
    done = subprocess.run(command, input=unit, capture_output=True, text=True, check=False)
    if done.returncode:
        made.unlink(missing_ok=True)
        raise BuildError(f"building {what} failed: {shlex.join(command)}\n{done.stderr[:4000]}")
    made.replace(place)


def digest_of(sources: Path, compiler: str | None, options: list[str]) -> str:
    """A name for what the compiler makes of the files in ``sources`` with ``options``."""
    digest = hashlib.sha256()
    for source in [*sorted(sources.iterdir()), *sorted(SCHEMA.iterdir())]:
        digest.update(source.name.encode() + source.read_bytes())
    digest.update(" ".join(options).encode())
    if compiler is not None:
        real = Path(compiler).resolve()
        digest.update(f"{real} {real.stat().st_size} {real.stat().st_mtime_ns}".encode())
    return digest.hexdigest()[:16]


def folder(name: str) -> Path:
    """Where built libraries of this name are kept: in the checkout where there is one, else the user's cache."""
    root = checkout.root()
    return root / "build" / name if root is not None and os.access(root, os.W_OK) else cache()


def cache() -> Path:
    """The user's, for what is made once. ``STREAMRACE_CACHE`` says where."""
    home = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(os.environ.get("STREAMRACE_CACHE") or os.path.join(home, "streamrace"))
