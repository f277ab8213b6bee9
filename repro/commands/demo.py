"""Implements ``demo``: finds, witnesses, explains and cures a race in a program of ten lines."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from contextlib import nullcontext
from difflib import unified_diff
from importlib.metadata import version as version_of
from pathlib import Path
from typing import TYPE_CHECKING

import click

from streamrace import scenarios
from streamrace.repro.commands import flags

if TYPE_CHECKING:
    from rich.console import Console

PROGRAMS = Path(scenarios.__file__).with_name("demo")
_RACE, _CLEAN = 1, 0  # exit statuses of check
_RACY, _CURED = "racy.py", "cured.py"


@click.command()
@flags.runs("the programs and their runs go, into a folder demo")
def demo(runs: Path) -> None:
    """Check and explain a program of ten lines that has a race, then check it again with the missing wait.

    Both programs are written into demo/ of --runs each time, and run by 'streamrace check', whose results are shown.
    DeepSpeed is not needed. It takes some seconds; the first time half a minute more, to compile the simulated GPU.
    Exit status: 0 a race in the first program and none in the second, 1 any other result, 2 wrong usage.
    """
    from rich.syntax import Syntax

    from streamrace.reports.screen.console import Terminal
    from streamrace.repro.commands.check import check
    from streamrace.repro.commands.explain import explain

    console = Terminal()

    def say(text: str, style: str = "") -> None:
        console.print(text, style=style, highlight=False, soft_wrap=True)

    folder = runs / "demo"
    folder.mkdir(parents=True, exist_ok=True)
    texts = {name: (PROGRAMS / name).read_text(encoding="utf-8") for name in (_RACY, _CURED)}
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
    say(f"A program with a race: {folder / _RACY}", "bold")
    program = Syntax(texts[_RACY].rstrip(), "python", line_numbers=True, background_color="default", word_wrap=True)
    console.print(program)
    _compile(console)
    racy = _run(console, check, "--runs", folder, "--name", "racy", "--overwrite", folder / _RACY)
    if racy == _RACE:
        _run(console, explain, folder / "racy", "1")
    say(f"\nThe same with the wait that is missing: {folder / _CURED}", "bold")
    console.print(Syntax(_difference(texts), "diff", background_color="default", word_wrap=True))
    cured = _run(console, check, "--runs", folder, "--name", "cured", "--overwrite", folder / _CURED)
    if (racy, cured) != (_RACE, _CLEAN):
        say(f"\nThe demo should end with {_RACE} (a race) and {_CLEAN} (none); it ended with {racy} and {cured}.")
        raise SystemExit(1)
    say("\nGo on with:", "bold")
    run = shlex.quote(str(folder / "racy"))
    for words, purpose in (
        (f"fix {run} 1", "what would cure it, at which price, as a diff"),
        (f"emit-test {run} 1", "a test that fails while the race is there"),
        (f"report {run}", "a page with pictures"),
        ("check train.py", "your own program"),
    ):
        say(f"  {_typed(words)}  # {purpose}")


def _difference(texts: Mapping[str, str]) -> str:
    before, after = (texts[name].splitlines() for name in (_RACY, _CURED))
    return "\n".join(unified_diff(before, after, _RACY, _CURED, n=2, lineterm=""))


def _compile(console: Console) -> None:
    """Compile before ``check``, which does not report the delay."""
    from streamrace.detectors.native import build as engine
    from streamrace.device import build

    if not (build.place(version_of("torch")).exists() and engine.place().exists()):
        activity = "compiling the simulated GPU, once: half a minute"
        with console.status(activity) if console.is_terminal else nullcontext():
            if not console.is_terminal:
                console.print(activity, highlight=False)
            build.library()
            engine.library()


def _run(console: Console, command: click.Command, *words: str | Path) -> int:
    """Show the command and run it as from the command line; return its exit status."""
    arguments = [str(word) for word in words]
    typed = _typed(f"{command.name} {shlex.join(arguments)}")
    console.print(f"\n$ {typed}", style="bold", highlight=False, soft_wrap=True)
    try:
        command.main(arguments, standalone_mode=False)
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 1
    return 0


def _typed(words: str) -> str:
    from streamrace.reports.text import typed

    return typed(f"streamrace {words}")
