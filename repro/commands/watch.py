"""``watch``: the NaN watch on a training script, without changing a line of it."""

from __future__ import annotations

import importlib.util
import runpy
import sys
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

import click


def _words(context: click.Context, option: click.Parameter, value: tuple[str, ...] | str | None) -> list[str] | None:
    texts = [value] if isinstance(value, str) else list(value or ())
    return [word.strip() for text in texts for word in text.split(",") if word.strip()] or None


# What stands behind the script is the script's: click stops at the first word that is no option. Options before it
# are ours, so an unknown one is a mistake, and not something to pass on.
@click.command(context_settings={"allow_interspersed_args": False})
@click.option("-m", "module", is_flag=True, help="SCRIPT is a module's name, as for python -m.")
@click.option(
    "--watch",
    "kinds",
    callback=_words,
    metavar="WORDS",
    help="What to look at, with commas: inputs, outputs, loss, gradients, parameters, partitions, optimizer. "
    "[default: all]",
)
@click.option(
    "--checksums/--no-checksums",
    default=True,
    help="Follow each parameter's bits from its partition to its use: tells race, stale, uncovered and corruption "
    "apart. [default: checksums]",
)
@click.option("--bound", type=float, help="The largest absolute value that is good. [default: none]")
@click.option("--modules", metavar="PATTERN", help="Module paths whose outputs are looked at. [default: *]")
@click.option(
    "--on-finding",
    multiple=True,
    callback=_words,
    metavar="WORDS",
    help="What to do, with commas: warn, raise, stop, save. [default: warn,save]",
)
@click.option("--folder", type=click.Path(path_type=Path), help="Where incidents go. [default: incidents]")
@click.option("--record", type=click.Path(path_type=Path), help="A folder that takes what each step computes.")
@click.option("--history", type=click.IntRange(min=1), help="Steps whose statistics an incident holds. [default: 4]")
@click.argument("script")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def watch(
    module: bool,
    kinds: list[str] | None,
    on_finding: list[str] | None,
    script: str,
    arguments: tuple[str, ...],
    **options: Any,
) -> None:
    """Train as SCRIPT does, and say where the first NaN, Inf or wrong value comes from.

    SCRIPT runs as if python itself had started it, with its own ARGUMENTS. It also works as
    `torchrun ... -m repro watch SCRIPT` and `deepspeed --module repro watch SCRIPT`. torch is imported
    before the script: variables that torch reads at that moment (OMP_NUM_THREADS) have to be set outside.

    Exit status: the script's own; 1 after a finding with raise or stop; 2 wrong usage.
    """
    place = None if module else _script(script)
    given = {"watch": kinds, "on_finding": on_finding or ["warn", "save"], **options}
    launched: str | None = click.get_current_context().obj  # what DeepSpeed's launcher puts behind a program's name

    from detectors.live.auto import AutoWatch, StopTraining
    from detectors.live.engines import WatchError
    from detectors.live.incident import IncidentError

    try:
        auto = AutoWatch(**{name: value for name, value in given.items() if value is not None})
    except (WatchError, IncidentError, ValueError) as error:
        raise click.ClickException(str(error)) from None
    sys.argv = [script, *([launched] if launched else []), *arguments]
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
        raise click.ClickException(f"there is no script '{script}'")
    if place.is_dir() and not (place / "__main__.py").exists():
        raise click.ClickException(f"'{script}' is a folder without a __main__.py: give the script")
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
        raise click.ClickException(f"there is no module '{name}' to run")


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
