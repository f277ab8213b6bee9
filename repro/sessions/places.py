"""Where a command writes its run: in the run's folder, or beside it, until it is whole, where it replaces another.

So a run that is refused, fails or is killed leaves the one that it was to replace as it was. Nobody else writes there
meanwhile: a lock beside the folder says so, and dies with the process that holds it (flock(2)).
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
"""The end of the name of what is to replace a run. No run may have such a name (``commands.flags``)."""

_AT_FDCWD, _RENAME_EXCHANGE = -100, 2


@dataclass
class _Open:
    """What a command writes: into which folder, by where that will stand. ``locks``: where nobody else may write."""

    folders: dict[Path, Path] = field(default_factory=dict)
    locks: ExitStack = field(default_factory=ExitStack)


_open: list[_Open] = []  # of commands: one may be called within another
_locks: dict[Path, int] = {}


@contextmanager
def settled(refused: Callable[[BaseException], bool]) -> Iterator[None]:
    """To run a command in. What it has written is put in its place at its end.

    Where it was ``refused`` nothing is left of what it wrote. Where it breaks off otherwise, all is left, and the
    exception has a note that says where that is, if it is not where the run was to be.
    """
    mine = _Open()
    _open.append(mine)
    try:
        yield
        for folder in [*mine.folders.values()]:
            keep(folder)
    except BaseException as error:
        for path, folder in mine.folders.items():
            if refused(error):
                shutil.rmtree(folder, ignore_errors=True)
            elif folder != path:
                error.add_note(f"{path} is as it was; what this command left is {folder}.")
        raise
    finally:
        _open.remove(mine)
        mine.locks.close()


@contextmanager
def locked(path: Path, *, patient: bool = False) -> Iterator[None]:
    """Within, no other command writes there. Raises :class:`WrongUse` where one does, if it is not ``patient``."""
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
        os.close(lock)  # of a command that ended just now, and took it away
    _locks[path] = lock
    try:
        yield
    finally:
        with suppress(OSError):
            file.unlink()
        os.close(_locks.pop(path))


def alone(path: Path) -> None:
    """Let no other command write there, up to the end of this one. Raises :class:`WrongUse` where one does."""
    if _open and path not in _locks:
        _open[-1].locks.enter_context(locked(path))


def leave() -> None:
    """In a fork that runs a program of the user's: what that leaves running holds no lock."""
    for lock in _locks.values():
        os.close(lock)


def clear(folder: Path) -> None:
    """Remove what killed commands have left in ``folder``: what was to stand there, and nobody writes."""
    for left in folder.glob(f"*{BESIDE}"):
        with suppress(WrongUse, OSError), locked(left.with_name(left.name.removesuffix(BESIDE))):
            remove(left)


def begin(path: Path, *, replacing: bool) -> Path:
    """The folder to write the run ``path`` into; :func:`keep` puts it there. ``replacing``: a run is there now."""
    folder = beside(path) if replacing else path
    if replacing:
        remove(folder)
    folder.mkdir(parents=True, exist_ok=True)
    if _open:
        _open[-1].folders[path] = folder
    return folder


def beside(path: Path) -> Path:
    """Where what is to replace the run ``path`` is written."""
    return path.with_name(f"{path.name}{BESIDE}")


def keep(folder: Path) -> Path:
    """The run in ``folder`` is whole: put it in its place. Gives where it stands now."""
    for one in _open:
        for path, written in [*one.folders.items()]:
            if written == folder:
                del one.folders[path]
                if path != folder:
                    _exchange(folder, path)
                    remove(folder)
                return path
    return folder


def remove(folder: Path) -> None:
    """A run, or a link to one, if there is any."""
    if folder.is_symlink():
        folder.unlink()
    elif folder.exists():
        shutil.rmtree(folder)


def _exchange(folder: Path, path: Path) -> None:
    """At once (renameat2(2)), so that ``path`` is a whole run at any time; else in two steps."""
    libc = ctypes.CDLL(None)
    names = os.fsencode(folder), os.fsencode(path)
    if hasattr(libc, "renameat2") and not libc.renameat2(_AT_FDCWD, names[0], _AT_FDCWD, names[1], _RENAME_EXCHANGE):
        return
    aside = path.with_name(f".{path.name}.{os.getpid()}.old")
    path.rename(aside)
    folder.rename(path)
    aside.rename(folder)
