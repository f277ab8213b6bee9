"""Manages the files that are created once and kept: releases of packages, CPU builds of torch, binaries, references.

Most lie in the user's cache (:func:`streamrace.checkout.cache`); a checkout's own binaries lie in its ``build/``.
A process that imports from the cache holds a shared lock on each folder that it uses (flock(2)) until it ends, however
it ends, so that no other process removes a folder in use. Binaries can be removed at any time: a process that has
loaded one keeps it. The time of last use is the modification time of the file or folder itself.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import NamedTuple

from streamrace import checkout
from streamrace.checkout import cache
from streamrace.compiling import used

RELEASE, TORCH, NATIVE, REFERENCE, LEFT, OTHER = KINDS = (
    "release", "torch", "native", "reference", "unfinished", "other",
)  # fmt: skip
"""Kinds of kept files: a release of a package, a CPU build of torch, a compiled binary, a reference of a scenario,
leftovers of a command that was killed, and files unknown to this version."""
_PART = ".part"
_FOLDERS = {"releases": (RELEASE, "*/*", ""), "torch": (TORCH, "*", "torch-"), "stubs": (NATIVE, "*", "stubs-")}
"""Folders of the cache: the kind of their subfolders, the depth of these, and the prefix of their names."""
_held: dict[Path, int] = {}


class Kept(NamedTuple):
    """A kept folder or file. ``name``: as shown to the user; ``size`` in bytes; ``last``: last use (Unix seconds)."""

    name: str
    kind: str
    place: Path
    size: int
    last: float

    @property
    def in_use(self) -> bool:
        """Check whether a command uses this folder or file now."""
        if self.kind == LEFT and _making(self.place.parent):
            return True
        try:
            with _alone(self.place) if self.place.is_dir() else nullcontext():
                return False
        except BlockingIOError:
            return True


def hold() -> None:
    """Protect all cached folders that this process imports from until it ends, and note that they were used."""
    root = str(cache().absolute())
    for place in (Path(entry) for entry in sys.path if entry.startswith(root + os.sep)):
        if place not in _held and place.is_dir():
            with suppress(OSError):  # a file system without locks
                file = os.open(place, os.O_RDONLY | os.O_DIRECTORY)
                _held[place] = file
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            used(place)


def folders() -> list[Path]:
    """Return the folders with kept files: the user's cache, and the checkout's ``build/``."""
    root = checkout.root()
    return [cache(), *([] if root is None else [root / "build"])]


def everything() -> list[Kept]:
    """Return all kept folders and files, the largest first."""
    entries = [_kept(kind, name, place) for kind, name, place in places()]
    return sorted(entries, key=lambda entry: (-entry.size, entry.name, str(entry.place)))


def remove(entry: Kept) -> bool:
    """Remove ``entry`` atomically. Return False if a command uses it now. Raise OSError if it cannot be removed."""
    if not entry.place.is_dir():
        entry.place.unlink(missing_ok=True)
        return True
    if entry.kind == LEFT and _making(entry.place.parent):
        return False
    aside = entry.place.with_name(f".{entry.name}.{os.getpid()}{_PART}")
    try:
        with _alone(entry.place):
            entry.place.rename(aside)
    except BlockingIOError:
        return False
    shutil.rmtree(aside)
    return True


def places() -> Iterator[tuple[str, str, Path]]:
    """Yield kind, name and path of all kept folders and files."""
    root, *builds = folders()
    for build in builds:
        yield from ((*_of_file(file), file) for file in sorted(build.glob("*/*.*")) if _of_file(file)[0])
    if not root.is_dir():
        return
    for place in sorted(root.iterdir()):
        if place.name in _FOLDERS:
            kind, depth, begin = _FOLDERS[place.name]
            for path in sorted(place.glob(depth)):
                if path.is_dir():
                    yield (LEFT if path.name.startswith(".") else kind), f"{begin}{path.name.lstrip('.')}", path
        elif place.is_dir():
            yield (LEFT if place.name.startswith(".") else OTHER), place.name.lstrip("."), place
        elif place.name != "lock":
            kind, name = _of_file(place)
            yield kind or OTHER, name or place.name, place


def _of_file(file: Path) -> tuple[str, str]:
    """Return kind and name of a single kept file; both empty for unknown files."""
    stem, _, digest = file.stem.partition("-")
    if file.suffix == ".so" and stem.startswith("lib") and digest:
        return NATIVE, stem
    return (REFERENCE, "references") if file.suffix == ".msgpack" and stem == "reference" else ("", "")


def _kept(kind: str, name: str, place: Path) -> Kept:
    size, last = 0, 0.0
    with suppress(OSError):
        last = place.stat().st_mtime
        size = _size(place)
    return Kept(name, kind, place, size, last)


def _size(place: Path) -> int:
    if not place.is_dir():
        return place.stat().st_size
    inner = (os.path.join(folder, name) for folder, _, names in os.walk(place) for name in names)
    return sum(os.lstat(file).st_size for file in inner)


def _making(folder: Path) -> bool:
    """Check whether a command is creating something in ``folder``: it then holds a lock there."""
    for lock in folder.glob("*lock"):
        try:
            with lock.open() as file:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:
            continue
    return False


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Keep other processes from using the folder. Raise BlockingIOError if one uses it already."""
    file = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise
        except OSError:
            pass  # a file system without locks
        yield
    finally:
        os.close(file)
