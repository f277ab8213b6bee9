"""Defines flags that many commands share: folders of runs, number of workers, expected verdict, slowed work.

Imports no more than click: ``check`` runs where neither DeepSpeed nor a scenario is installed.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import field, fields
from functools import partial, wraps
from pathlib import Path
from typing import Any

import click

from streamrace.repro.sessions.staging import BESIDE

Function = Callable[..., Any]
Decorator = Callable[[Function], Function]

PATH = click.Path(path_type=Path)
_LONGEST = 200  # bytes: a file name has 255, and a run's files have longer names than the run


def option(*words: str, **settings: Any) -> Any:
    """Return a dataclass field that is an option of the command line, in the terms of ``click.option``."""
    return field(metadata={"click": lambda name: click.option(*words, name, **settings)})


def argument(**settings: Any) -> Any:
    """Return a dataclass field that is an argument of the command line, in the terms of ``click.argument``."""
    return field(metadata={"click": lambda name: click.argument(name, **settings)})


def options(kind: type[Any]) -> Decorator:
    """Return a decorator that adds the options of the dataclass ``kind``, and passes all its fields as one object.

    Fields without an option of their own take the values of the command's other decorators, above this one.
    """

    def decorate(command: Function) -> Function:
        @wraps(command)
        def called(*before: Any, **values: Any) -> Any:
            return command(*before, kind(**{each.name: values.pop(each.name) for each in fields(kind)}), **values)

        for each in reversed(fields(kind)):
            if "click" in each.metadata:
                called = each.metadata["click"](each.name)(called)
        return called

    return decorate


def _named(context: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    """Check that the value names a folder directly under --runs."""
    if value is None:
        return None
    if not value or value.startswith(".") or "/" in value or not value.isprintable():
        raise click.BadParameter(f"{value!r} is not the name of a folder: --runs says where it goes")
    if len(os.fsencode(value)) > _LONGEST:
        raise click.BadParameter(f"{len(value)} characters are too many: take at most {_LONGEST}")
    if value.endswith(BESIDE):
        raise click.BadParameter(f"names that end with {BESIDE} are of unfinished runs: choose another name")
    return value


def runs(where: str = "run folders go") -> Decorator:
    """Add ``--runs``."""
    return click.option("--runs", type=PATH, default=Path("runs"), help=f"Where {where}. [default: runs]")


def folder(of: str, default: str, *, chosen: bool = False, replaces: str = "") -> Decorator:
    """Add ``--name``, ``--runs`` and, with ``replaces``, ``--overwrite``.

    ``of``: the named object. ``chosen``: the command chooses the name (it gets None), and ``default`` describes that.
    ``replaces``: what ``--overwrite`` replaces.
    """

    def decorate(command: Function) -> Function:
        if replaces:
            text = f"Replace {replaces} of the same name."
            command = click.option("--overwrite", is_flag=True, help=text)(command)
        text = f"Name of the {of}. [default: {default}]"
        return click.option("--name", callback=_named, default=None if chosen else default, help=text)(runs()(command))

    return decorate


run_folder = partial(folder, "run's folder", chosen=True, replaces="a run")


def workers(text: str = "Parallel dry runs.", *, default: int | None = None, most: int | None = None) -> Decorator:
    """Add ``--workers``; without a ``default`` it is None, which stands for the number of cores."""
    help_text = f"{text} [default: {default or 'the cores'}]"
    return click.option("--workers", type=click.IntRange(1, most), default=default, help=help_text)


def packages() -> Decorator:
    """Add ``--package``, which can be repeated."""
    return click.option(
        "--package",
        "packages",
        multiple=True,
        metavar="NAME==VERSION",
        help="Use this unmodified release of a package: deepspeed==0.13.4, torch==2.8.0. It is installed once, into "
        "the user's cache ('streamrace cache' lists it); the environment is not changed.",
    )


def formats() -> Decorator:
    """Add ``--format`` and ``--output``."""
    from streamrace.reports.formats.names import NAMES

    def decorate(command: Function) -> Function:
        text = "The file to write. [default: standard output; other messages go to standard error]"
        command = click.option("--output", type=PATH, help=text)(command)
        text = "Format: for a person, a script, code scanning, a test server, or annotations of a workflow."
        return click.option("--format", "form", type=click.Choice(NAMES), default="text", show_default=True, help=text)(
            command
        )

    return decorate


def expect(*verdicts: str, text: str = "Exit with 1 unless this is found.") -> Decorator:
    """Add ``--expect``."""
    return click.option("--expect", type=click.Choice(verdicts), help=text)


def reference_again() -> Decorator:
    """Add ``--reference-again``."""
    return click.option(
        "--reference-again",
        is_flag=True,
        help="Run the reference again, even if it is kept from a run of the same scenario, versions and code.",
    )


def factors(texts: Iterable[str], example: str) -> dict[str, float]:
    """Parse ``--slow`` into factors by pattern. Raises ValueError with a sentence that shows ``example``."""
    factors: dict[str, float] = {}
    for text in texts:
        pattern, equals, factor = text.rpartition("=")
        try:
            factors[pattern] = float(factor)
        except ValueError:
            equals = ""
        if not equals or not pattern:
            raise ValueError(f"--slow takes PATTERN=FACTOR, for example {example}, not '{text}'")
    return factors
