"""Implements ``judge``: judges recordings of a real GPU, from which the program has gone on or ended, and traces of
torch's profiler.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import click
from click.core import ParameterSource

from streamrace.repro.commands import flags


@dataclass(frozen=True, kw_only=True)
class JudgeOptions:
    """The recordings, and the folder of the run that they become."""

    recordings: Path
    strict: bool = flags.option(
        "--strict", is_flag=True, help="Also fail if only chance orders two accesses (fragile): exit status 1."
    )
    report: bool = flags.option("--report", is_flag=True, help="Make the page of 'streamrace report' at once.")
    form: str
    output: Path | None
    name: str | None
    runs: Path
    overwrite: bool


@click.command()
@click.argument("recordings", metavar="FOLDER|TRACE", type=flags.PATH)
@flags.options(JudgeOptions)
@flags.run_folder("the folder's and the time")
@flags.formats()
def judge(options: JudgeOptions) -> None:
    """Judge the recordings in FOLDER, one file for each rank (rank0.trace, ...), as 'check' judges its own run.

    Recordings are made by 'with streamrace.recording(FOLDER):' around a part of a program, or by 'streamrace check
    --on-gpu'. Those of several machines are put into one folder first. Exit status: as for check.

    A TRACE (.json, .json.gz) of torch's profiler has the order of work and not its memory: told is which work nothing
    orders, and what the trace lacks. No option goes with it. Exit status: 4, as such a trace never shows or excludes a
    race; 2 if it cannot be read.
    """
    if options.recordings.name.endswith((".json", ".json.gz")) and not options.recordings.is_dir():
        from streamrace.repro.sessions.profiled import judge as judge_trace

        context = click.get_current_context()
        given = [
            parameter.opts[0]
            for parameter in context.command.params
            if parameter.name and context.get_parameter_source(parameter.name) is ParameterSource.COMMANDLINE
        ]
        judge_trace(options.recordings, given[1:])
    from streamrace.repro.sessions.recorded import judge as judge_recordings

    judge_recordings(options.recordings, options.runs, options.name, options.form, options.output,
                     overwrite=options.overwrite, strict=options.strict, report=options.report)  # fmt: skip
