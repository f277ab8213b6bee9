"""Runs a user's program as ``python script.py`` or ``python -m module`` would.

Serves the simulated GPU and the NaN watch: checks that the program exists, sets the folder from which its own modules
are imported, and reduces tracebacks to the program's part. Imports nothing of torch.
"""

from __future__ import annotations

import importlib.util
import os
import runpy
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from streamrace.process.frames import roomy

_OF_LAUNCHERS = {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}


class WrongUse(Exception):
    """A program cannot be run as requested. One sentence."""


@dataclass(frozen=True)
class Program:
    """``name``: a script's path, a folder with a ``__main__.py``, or a ``module``. ``arguments``: its arguments."""

    name: str
    arguments: tuple[str, ...] = ()
    module: bool = False

    @property
    def folder(self) -> Path:
        """Return the folder of the program's own modules. Raise :class:`WrongUse` if there is no such script."""
        if self.module:
            return Path.cwd()
        place = _script(self.name)
        return place if place.is_dir() else place.parent

    def find(self) -> None:
        """Make the program's own modules importable. Raise :class:`WrongUse` if there is no such program.

        The search for a module imports its package, and torch possibly with it.
        """
        folder = self.folder
        if not sys.flags.safe_path:  # until now the entry of this command
            sys.path[0] = str(folder)
        if self.module:
            sys.argv = ["-m", *self.arguments]  # what Python says while it imports the module's package
            _find_module(self.name)

    @roomy
    def run(self) -> dict[str, Any]:
        """Run the program as ``__main__`` to its end; return its final global names. Exceptions propagate."""
        sys.argv = [self.name, *self.arguments]
        if self.module:
            return runpy.run_module(self.name, run_name="__main__", alter_sys=True)
        return runpy.run_path(str(_script(self.name)), run_name="__main__")


def fail(error: BaseException, internal: Sequence[str]) -> int:
    """Print a program's exception like the interpreter, or by the program's own hook; return the exit status.

    ``internal``: modules whose frames are not the program's. Not re-raised, as our own frames are above.
    """
    if isinstance(error, SystemExit):
        if error.code is None or isinstance(error.code, int):
            return error.code or 0
        print(error.code, file=sys.stderr)
        return 1
    strip(error, internal)
    sys.excepthook(type(error), error, error.__traceback__)
    return 130 if isinstance(error, KeyboardInterrupt) else 1


def lacks_ranks(error: BaseException) -> bool:
    """Check whether the program ended because it reads a variable of a launcher, such as RANK, and none started it."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None or "WORLD_SIZE" in os.environ:
        return False
    frame = trace.tb_frame
    if isinstance(error, KeyError):
        return frame.f_globals is vars(os) and error.args[0] in _OF_LAUNCHERS
    if isinstance(error, ValueError):  # torch.distributed.rendezvous
        return frame.f_code.co_name == "_get_env_or_raise"
    return isinstance(error, ModuleNotFoundError) and frame.f_code.co_name == "mpi_discovery"  # DeepSpeed


def strip(error: BaseException, internal: Sequence[str]) -> None:
    """Remove our frames and runpy's from the tracebacks, so that only the program's remain."""
    visited: set[int] = set()
    waiting: list[BaseException | None] = [error]
    while waiting:
        current = waiting.pop()
        if current is None or id(current) in visited:
            continue
        visited.add(id(current))
        waiting += [current.__cause__, current.__context__]
        frames = list(_traces(current.__traceback__))
        run = [place for place, trace in enumerate(frames) if _module_of(trace) == "runpy"]
        behind = frames[run[-1] + 1 if run else 0 :]
        remaining = [trace for trace in behind if not _module_of(trace).startswith(tuple(internal))]
        following: TracebackType | None = None
        for trace in reversed(remaining):
            trace.tb_next = following
            following = trace
        current.__traceback__ = following


def _script(script: str) -> Path:
    place = Path(script).absolute()
    if not place.exists():
        raise WrongUse(f"there is no script '{script}'")
    if place.is_dir() and not (place / "__main__.py").exists():
        raise WrongUse(f"'{script}' is a folder without a __main__.py: give the script")
    return place


def _find_module(name: str) -> None:
    """Raise :class:`WrongUse` if there is no such module. A package that fails while imported is left to runpy."""
    try:
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.submodule_search_locations is not None:
            spec = importlib.util.find_spec(f"{name}.__main__")
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            return
        spec = None
    except Exception:
        return
    if spec is None:
        raise WrongUse(f"there is no module '{name}' to run")


def _traces(trace: TracebackType | None) -> Iterator[TracebackType]:
    while trace is not None:
        yield trace
        trace = trace.tb_next


def _module_of(trace: TracebackType) -> str:
    return str(trace.tb_frame.f_globals.get("__name__", ""))
