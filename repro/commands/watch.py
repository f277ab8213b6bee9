"""``watch``: the NaN watch on a training script, without changing a line of it.

Its options are read with argparse, unlike those of the other commands: the watch is to run where numpy and torch are
installed and nothing else, so without click.
"""

from __future__ import annotations

import argparse
import importlib.util
import runpy
import sys
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from types import TracebackType
from typing import NoReturn

_EPILOG = """\
SCRIPT runs as if python itself had started it, with its own ARGUMENTS. It also works as
'torchrun ... -m repro watch SCRIPT' and 'deepspeed --module repro watch SCRIPT'. torch is imported before the script:
variables that torch reads at that moment (OMP_NUM_THREADS) have to be set outside.

Exit status: the script's own; 1 after a finding with raise or stop; 2 wrong usage.
"""


class WrongUse(Exception):
    """Something cannot be watched as it was asked for. One sentence."""


class _Parser(argparse.ArgumentParser):
    """One sentence and exit status 2, in the words of the other commands."""

    def error(self, message: str) -> NoReturn:
        self.print_usage(sys.stderr)
        print(f"Try '{self.prog} --help' for help.\n\nError: {message}", file=sys.stderr)
        sys.exit(2)


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="repro watch",
        usage="repro watch [OPTIONS] SCRIPT [ARGUMENTS]...",
        description="Train as SCRIPT does, and say where the first NaN, Inf or wrong value comes from.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        argument_default=argparse.SUPPRESS,  # what is not given is AutoWatch's to decide
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("-m", dest="module", action="store_true", default=False, help="SCRIPT is a module's name, as for python -m.")
    add(
        "--watch",
        type=_words,
        metavar="WORDS",
        help="What to look at, with commas: inputs, outputs, loss, gradients, parameters, partitions, optimizer. "
        "[default: all]",
    )
    add(
        "--checksums",
        action="store_true",
        default=True,
        help="Follow each parameter's bits from its partition to its use: tells race, stale, uncovered and corruption "
        "apart. [default]",
    )
    add("--no-checksums", dest="checksums", action="store_false", help="Leave that out.")
    add("--bound", type=float, metavar="FLOAT", help="The largest absolute value that is good. [default: none]")
    add("--modules", metavar="PATTERN", help="Module paths whose outputs are looked at. [default: *]")
    add(
        "--on-finding",
        type=_words,
        action="append",
        metavar="WORDS",
        help="What to do, with commas: warn, raise, stop, save. [default: warn,save]",
    )
    add("--folder", type=Path, metavar="PATH", help="Where incidents go. [default: incidents]")
    add("--record", type=Path, metavar="PATH", help="A folder that takes what each step computes.")
    add("--history", type=_count, metavar="STEPS", help="Steps whose statistics an incident holds. [default: 4]")
    # One argument that takes the script and all that stands behind it: options there are the script's. Those before
    # it are ours, so an unknown one is a mistake, and not something to pass on.
    add("program", nargs=argparse.PARSER, metavar="SCRIPT", help=argparse.SUPPRESS)
    return parser


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def _count(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} is not in the range x>=1")
    return number


def run(arguments: list[str], launched: str | None = None) -> None:
    """Watch the script that ``arguments`` name. ``launched``: what DeepSpeed's launcher adds to its arguments.

    Returns or exits as the script does. Raises :class:`WrongUse` before the script starts.
    """
    parser = _parser()
    given, unknown = parser.parse_known_args(arguments)
    if unknown:
        parser.error(f"No such option '{unknown[0]}'")
    options = vars(given)
    module, (script, *rest) = options.pop("module"), options.pop("program")
    place = None if module else _script(script)
    options["on_finding"] = list(chain.from_iterable(options.get("on_finding", []))) or ["warn", "save"]
    if not options.get("watch", True):  # only commas: nothing was named
        del options["watch"]

    from detectors.live.auto import AutoWatch, StopTraining
    from detectors.live.engines import WatchError
    from detectors.live.incident import IncidentError

    try:
        auto = AutoWatch(**options)
    except (WatchError, IncidentError, ValueError) as error:
        raise WrongUse(str(error)) from None
    sys.argv = [script, *([launched] if launched else []), *rest]
    if not sys.flags.safe_path:  # where the script's neighbours are found: this command's place until now
        sys.path[0] = str(Path.cwd() if place is None else place if place.is_dir() else place.parent)
    if place is None:
        _find_module(script)
    try:
        with auto:
            if place is None:
                runpy.run_module(script, run_name="__main__", alter_sys=True)
            else:
                runpy.run_path(str(place), run_name="__main__")
    except StopTraining:
        sys.exit(1)
    except SystemExit as error:
        if error.code or not auto.failed:
            raise
    except BaseException as error:
        # As the interpreter would do it, or the program's own hook. Not re-raised: above us stand our frames.
        _strip(error)
        sys.excepthook(type(error), error, error.__traceback__)
        sys.exit(130 if isinstance(error, KeyboardInterrupt) else 1)
    if auto.failed:
        sys.exit(1)


def _script(script: str) -> Path:
    place = Path(script).absolute()
    if not place.exists():
        raise WrongUse(f"there is no script '{script}'")
    if place.is_dir() and not (place / "__main__.py").exists():
        raise WrongUse(f"'{script}' is a folder without a __main__.py: give the script")
    return place


def _find_module(name: str) -> None:
    """Is there such a module? A package that fails while it is imported is left to runpy."""
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


def _strip(error: BaseException) -> None:
    """Take this tool's frames and runpy's out of the tracebacks, so that they show what the program did."""
    seen: set[int] = set()
    waiting: list[BaseException | None] = [error]
    while waiting:
        one = waiting.pop()
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        waiting += [one.__cause__, one.__context__]
        frames = list(_traces(one.__traceback__))
        run = [place for place, trace in enumerate(frames) if _module_of(trace) == "runpy"]
        kept = [trace for trace in frames[run[-1] + 1 if run else 0 :] if not _is_ours(trace)]
        following: TracebackType | None = None
        for trace in reversed(kept):
            trace.tb_next = following
            following = trace
        one.__traceback__ = following


def _traces(trace: TracebackType | None) -> Iterator[TracebackType]:
    while trace is not None:
        yield trace
        trace = trace.tb_next


def _module_of(trace: TracebackType) -> str:
    return str(trace.tb_frame.f_globals.get("__name__", ""))


def _is_ours(trace: TracebackType) -> bool:
    return _module_of(trace).startswith(("detectors.live.", "repro.commands.watch"))
