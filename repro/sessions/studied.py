"""Finishes the commands of studies: writes the note of the command line, and the report."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource
from rich.console import Console

from streamrace.device.extras import installed
from streamrace.studies.table import STYLES

_PACKAGES = ("torch", "deepspeed", "transformers")
_ASIDE = {"runs", "workers", "overwrite"}  # options on which no result depends


def report(
    console: Console,
    folder: Path,
    study: str,
    *,
    options: Mapping[str, Any] | None = None,
    hardware: str = "",
    more: tuple[str, ...] = (),
    shown: bool = True,
) -> None:
    """Write ``folder/study.json`` and the report of the folder; print its tables and its path.

    ``shown``: print the study's tables. ``options``: of the job; ``hardware``: description of the profile; ``more``:
    further arguments of the command. Raises :class:`streamrace.reports.data.loading.ReportError`.
    """
    from streamrace.reports.pages import study_folder, study_page
    from streamrace.reports.screen.terminal import doing

    with doing(console, "writing the report"):
        noted(folder, study, options=options, hardware=hardware, more=more)
        result = study_folder.load(folder)
        page = study_page.write(result, folder / "report")
    for table in result.tables if shown else ():
        console.print(table)
    if shown:
        console.print(result.sentence, style=STYLES[result.tone], highlight=False, markup=False)
    console.print(f"Report: {page}", highlight=False, soft_wrap=True)


def noted(
    folder: Path,
    study: str,
    *,
    options: Mapping[str, Any] | None = None,
    hardware: str = "",
    more: tuple[str, ...] = (),
) -> None:
    """Write ``folder/study.json``, from which a report can be made later. Parameters as in :func:`report`."""
    from streamrace.reports.pages import study_folder, study_page

    ran = study_page.StudyMetadata(
        study=study,
        command=command(click.get_current_context(), more),
        versions=installed(*_PACKAGES),
        options=dict(options or {}),
        hardware=hardware,
    )
    study_folder.note(folder, ran)


def command(context: click.Context, more: tuple[str, ...] = ()) -> str:
    """Return the command line that repeats this command. ``more``: its arguments, if not as click has them."""
    words = ["streamrace", context.info_name or ""]
    for parameter in context.command.params:
        name = parameter.name or ""
        given = context.get_parameter_source(name) is ParameterSource.COMMANDLINE
        if name in _ASIDE or not given or (more and not isinstance(parameter, click.Option)):
            continue
        value = context.params[name]
        if not isinstance(parameter, click.Option):
            words.append(str(value))
        elif parameter.is_flag:
            words.append((parameter.opts if value else parameter.secondary_opts)[0])
        else:
            for item in value if parameter.multiple else [value]:
                words += [parameter.opts[0], str(item)]
    return shlex.join([*words, *more])
