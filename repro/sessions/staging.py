"""Stages a command's run: writes it in the run's folder, or, to replace a run, next to that until it is complete.

So a run that is refused, fails or is killed leaves the run that it was to replace unchanged. A lock next to the folder
keeps other commands out, and is released when its process ends (flock(2)).
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from streamrace.device.scripts import WrongUse

BESIDE = ".new"
"""Suffix of staging folders. No run may have such a name (:mod:`streamrace.repro.commands.flags`)."""

_AT_FDCWD, _RENAME_EXCHANGE = -100, 2


@dataclass
class _Open:
    """The output of a command. ``folders``: the written folders, by destination. ``locks``: on the destinations."""

    folders: dict[Path, Path] = field(default_factory=dict)
    locks: ExitStack = field(default_factory=ExitStack)


_open: list[_Open] = []  # a stack: a command may be called within another
_locks: dict[Path, int] = {}


@contextmanager
def settled(refused: Callable[[BaseException], bool]) -> Iterator[None]:
    """Run a command in this context: at its end its runs are moved to their destinations.

    If it was ``refused``, its output is removed. On any other exception its output stays, and the exception gets a note
    with the staging folder, if there is one.
    """
    opened = _Open()
    _open.append(opened)
    try:
        yield
        for folder in [*opened.folders.values()]:
            commit(folder)
    except BaseException as error:
        for path, folder in opened.folders.items():
            if refused(error):
                shutil.rmtree(folder, ignore_errors=True)
            elif folder != path:
                error.add_note(f"{path} is as it was; what this command left is {folder}.")
        raise
    finally:
        _open.remove(opened)
        opened.locks.close()


@contextmanager
def locked(path: Path, *, patient: bool = False) -> Iterator[None]:
    """Keep other commands from writing to ``path``. Raises :class:`WrongUse` if one does, unless ``patient``."""
    path.parent.mkdir(parents=True, exist_ok=True)
    file = path.with_name(f".{path.name}.lock")
    while True:
        lock = os.open(file, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | (0 if patient else fcntl.LOCK_NB))
        except BlockingIOError:
            os.close(lock)
            raise WrongUse(f"another command writes {path} now: wait for its end, or write to another place") from None
        except OSError:
            pass  # a file system without locks
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(lock), file.stat()):
                break
        os.close(lock)  # the lock file was removed by a command that ended just now
    _locks[path] = lock
    try:
        yield
    finally:
        with suppress(OSError):
            file.unlink()
        os.close(_locks.pop(path))


def exclusive(path: Path) -> None:
    """Lock ``path`` until this command ends. Raises :class:`WrongUse` if another command holds the lock."""
    if _open and path not in _locks:
        _open[-1].locks.enter_context(locked(path))


def cleanup() -> None:
    """Close the locks in a fork that runs a user's program, so that processes it leaves behind hold none."""
    for lock in _locks.values():
        os.close(lock)


def clear(folder: Path) -> None:
    """Remove the staging folders that killed commands have left in ``folder``, if not locked."""
    for leftover in folder.glob(f"*{BESIDE}"):
        with suppress(WrongUse, OSError), locked(leftover.with_name(leftover.name.removesuffix(BESIDE))):
            remove(leftover)


def begin(path: Path, *, replacing: bool) -> Path:
    """Create the folder to write the run ``path`` into; :func:`commit` commits it. ``replacing``: a run exists."""
    folder = staging_path(path) if replacing else path
    if replacing:
        remove(folder)
    folder.mkdir(parents=True, exist_ok=True)
    if _open:
        _open[-1].folders[path] = folder
    return folder


def staging_path(path: Path) -> Path:
    """Return the staging folder of the run ``path``."""
    return path.with_name(f"{path.name}{BESIDE}")


def commit(folder: Path) -> Path:
    """Commit the complete run in ``folder``: move it to its destination. Return its final place."""
    for opened in _open:
        for path, written in [*opened.folders.items()]:
            if written == folder:
                del opened.folders[path]
                if path != folder:
                    _exchange(folder, path)
                    remove(folder)
                return path
    return folder


def remove(folder: Path) -> None:
    """Remove a run, or a link to one, if it exists."""
    if folder.is_symlink():
        folder.unlink()
    elif folder.exists():
        shutil.rmtree(folder)


def _exchange(folder: Path, path: Path) -> None:
    """Swap atomically (renameat2(2)), so that ``path`` is a complete run at any time; else in two steps."""
    libc = ctypes.CDLL(None)
    names = os.fsencode(folder), os.fsencode(path)
    if hasattr(libc, "renameat2") and not libc.renameat2(_AT_FDCWD, names[0], _AT_FDCWD, names[1], _RENAME_EXCHANGE):
        return
    aside = path.with_name(f".{path.name}.{os.getpid()}.old")
    path.rename(aside)
    folder.rename(path)
    aside.rename(folder)
