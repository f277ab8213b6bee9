"""Reserves standard output for JSON: all else that a command and its processes print goes to standard error."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from functools import wraps
from typing import Any

import click

from streamrace.repro.commands.flags import Function

Put = Callable[[str], None]
"""Prints the JSON text on standard output, if the command was asked for it."""


def json_output(command: Function) -> Function:
    """Add ``--format`` to a command, which gets a :data:`Put` as ``put``. To be the innermost decorator."""

    @wraps(command)
    def called(*arguments: Any, form: str, **values: Any) -> Any:
        with _reserved(wanted=form == "json") as put:
            return command(*arguments, put=put, **values)

    text = "For a person, or for a script: JSON on standard output, and the rest on standard error."
    choice = click.Choice(["text", "json"])
    return click.option("--format", "form", type=choice, default="text", show_default=True, help=text)(called)


@contextmanager
def _reserved(*, wanted: bool) -> Iterator[Put]:
    if not wanted:
        yield lambda text: None
        return
    stream, saved = sys.stdout, os.dup(1)
    stream.flush()
    os.dup2(2, 1)  # libraries, and forks, print there too

    def put(text: str) -> None:
        os.dup2(saved, 1)
        try:
            stream.write(text)
            stream.flush()
        finally:
            os.dup2(2, 1)

    try:
        with redirect_stdout(sys.stderr):
            yield put
    finally:
        os.dup2(saved, 1)
        os.close(saved)
