"""Makes the command of each study of :mod:`streamrace.studies.registry` from its declaration."""

from __future__ import annotations

import shlex
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import click
import pandas as pd

from streamrace.reports.screen.console import Terminal
from streamrace.repro.commands import flags
from streamrace.repro.commands.json_output import Put, json_output
from streamrace.studies import registry
from streamrace.studies.study import Study, StudyRun


def command(name: str) -> click.Command:
    """Return the command of a study."""
    study = registry.load(name)

    @json_output
    def run(*, put: Put, **values: Any) -> None:
        _run(name, study, values, put)

    run.__doc__ = study.text
    decorated: Any = flags.folder(f"folder for the {study.takes}", name, replaces=study.replaces)(run)
    cls = click.Command
    if study.decided is not None:
        from streamrace.repro.commands.options import Sections, job_options

        cls = Sections
        decorated = flags.workers(default=study.workers)(decorated)
        decorated = job_options(*study.decided, usual=study.usual)(decorated)
    for option in reversed(study.options):
        decorated = option(decorated)
    study_command: click.Command = click.command(name, cls=cls)(decorated)
    return study_command


def __getattr__(name: str) -> click.Command:
    """Return the command of a study by its name, as the table of commands names it."""
    if name in registry.STUDIES:
        return command(name)
    raise AttributeError(name)


def _run(name: str, study: Study, values: dict[str, Any], put: Put) -> None:
    from streamrace.repro.sessions import folders, staging, studied

    began = time.perf_counter()
    console = Terminal()
    options: dict[str, Any] = {}
    if study.decided is not None:
        from streamrace.repro.commands.options import chosen
        from streamrace.scenarios.job import Job

        options = chosen(values, Job)
    plan = study.plan(values, options)
    mark, question = plan.mark
    folder = folders.marked(
        values["runs"] / values["name"],
        mark,
        lambda file: file.write_text(question, encoding="utf-8"),
        overwrite=values.get("overwrite", True),
    )
    workers = values.get("workers")
    if study.decided is not None and plan.title:
        from streamrace.reports.screen.terminal import doing
        from streamrace.scenarios import rehearsal

        with doing(console, plan.title):
            rehearsal.preload()
    frames = plan.measure(_surroundings(console, folder, name, study, workers))
    for file, frame in frames.items():
        frame.to_csv(folder / f"{file}.csv", index=False)
    if plan.part:
        return
    folder = staging.commit(folder)
    files = ", ".join(f"{file}.csv" for file in frames)
    console.print(f"Files: {folder}/{files} ({time.perf_counter() - began:.0f} s)", highlight=False)
    studied.report(console, folder, name, options=plan.options, hardware=plan.hardware)
    put((folder / "report" / "findings.json").read_text(encoding="utf-8"))


def _surroundings(console: Terminal, folder: Path, name: str, study: Study, workers: int | None) -> StudyRun:
    from streamrace.reports.screen.terminal import doing
    from streamrace.repro.commands.progress import counting
    from streamrace.repro.sessions import studied

    words = shlex.split(studied.command(click.get_current_context()))[1:]
    if workers:
        words += ["--workers", str(workers)]
    busy: Any = partial(doing, console)
    return StudyRun(
        folder=folder,
        workers=workers,
        counting=partial(counting, console),
        doing=busy,
        elsewhere=partial(_elsewhere, folder=folder, words=words, name=name, option=study.release),
        tell=partial(console.print, highlight=False),
    )


def _elsewhere(release: str, *, folder: Path, words: Sequence[str], name: str, option: str) -> pd.DataFrame:
    """Run the command under another release of DeepSpeed, into a folder of ``folder``, and return its table."""
    from streamrace.repro.sessions.release import aside

    aside(release, [*words, option, release, "--runs", str(folder), "--name", release])
    return pd.read_csv(folder / release / f"{name}.csv", keep_default_na=False, na_values=[""])
