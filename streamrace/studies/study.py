"""Declares a study: its question, the options of its command, the runs that answer it, its columns and its tables.

The command line, the terminal and the page are made of the declaration; :mod:`.registry` lists all studies.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pandas as pd

from streamrace.studies.table import Table

if TYPE_CHECKING:
    from streamrace.scenarios.job import Job
    from streamrace.studies.process_pool import OnProgress

Frames = dict[str, pd.DataFrame]
"""The results of a study: a frame for each file NAME.csv of its folder."""


class Fact(NamedTuple):
    """A row of a table: a name and a value. ``word``: the entry of ``reports.pages.words`` that explains the name."""

    name: str
    value: str
    word: str = ""


class Conclusion(NamedTuple):
    """The answer. ``verdict``: a few words; ``sentence``: for a reader with one minute; ``tone``: good, warn or bad."""

    title: str
    verdict: str
    tone: str
    sentence: str
    facts: Sequence[Fact] = ()


@dataclass(frozen=True)
class StudyRun:
    """The surroundings of the runs, as the command provides them. ``folder`` takes the files of the runs.

    ``counting`` shows how many runs are done, ``doing`` what is done now. ``elsewhere`` runs the same command under
    another release of DeepSpeed, in a process of its own, and returns its table. ``tell`` prints a sentence.
    """

    folder: Path
    workers: int | None
    counting: Callable[[], AbstractContextManager[OnProgress]]
    doing: Callable[[str], AbstractContextManager[object]]
    elsewhere: Callable[[str], pd.DataFrame]
    tell: Callable[[str], None]


@dataclass(frozen=True)
class StudyPlan:
    """The runs that were asked for, checked before the first begins.

    ``measure`` carries them out. ``title`` is printed at the start. ``mark``: the file that identifies the folder, and
    its content. ``options`` and ``hardware``: of the job, for the report. ``part``: of a study of several releases, in
    the process of one of them: no report.
    """

    measure: Callable[[StudyRun], Frames]
    title: str = ""
    mark: tuple[str, str] = ("check.json", "{}\n")
    options: Mapping[str, Any] = field(default_factory=dict)
    hardware: str = ""
    part: bool = False

    @classmethod
    def of(cls, job: Job, measure: Callable[[StudyRun], Frames], title: str = "", *, part: bool = False) -> StudyPlan:
        """Return the plan of dry runs of ``job`` and its variations."""
        mark = ("job.json", f"{job.model_dump_json(indent=2)}\n")
        return cls(measure, title, mark, job.model_dump(mode="json"), job.profile().description, part)


@dataclass(frozen=True)
class Study:
    """A study. ``options``: of its command, by click; ``plan`` gets their values by name and the job's options that
    were given, and refuses mistakes.

    ``columns``: names and dtypes by file, without .csv, the main file first; of several at least one is there.
    ``later``: columns that earlier releases did not write; ``completed`` fills them, or raises ValueError with what is
    wrong.
    ``conclude``: the answer, from the frames and the job's options; ``tables`` of the frames. Its pictures are those of
    ``streamrace.reports.pictures.NAME``. ``decided``: options of a job that the study decides itself (None: it has no
    job); ``usual``: defaults of the others. ``release``: the option that names other releases of DeepSpeed. ``takes``
    and ``replaces``: contents of the folder, for the help; without ``replaces`` a folder of the same name is always
    replaced. ``workers``: default number of runs at once; None: the cores. ``words``: names that the page explains.
    """

    question: str
    text: str
    columns: Mapping[str, Mapping[str, str]]
    plan: Callable[[dict[str, Any], dict[str, Any]], StudyPlan]
    conclude: Callable[[Frames, Mapping[str, str]], Conclusion]
    tables: Callable[[Frames], Sequence[Table]]
    later: Sequence[str] = ()
    completed: Callable[[pd.DataFrame], pd.DataFrame] = lambda frame: frame
    options: Sequence[Callable[[Any], Any]] = ()
    decided: Sequence[str] | None = None
    usual: Mapping[str, Any] = field(default_factory=dict)
    release: str = ""
    takes: str = "table"
    replaces: str = ""
    workers: int | None = None
    words: Sequence[str] = ()


def unexercised(frame: pd.DataFrame) -> tuple[int, str]:
    """Return the number of rows in which some feature was never used, and these features."""
    partly = frame[frame.unexercised != ""]
    return len(partly), "; ".join(dict.fromkeys(partly.unexercised))


def listed(values: Iterable[float]) -> str:
    """Return the numbers, each once, with commas."""
    return ", ".join(f"{value:g}" for value in dict.fromkeys(values))


def slack(microseconds: float) -> str:
    """Return the slack of the closest pair, in short; empty if unknown."""
    if not math.isfinite(microseconds):
        return ""
    units = ((1e6, "s"), (1e3, "ms"), (1, "us"), (1e-3, "ns"))
    size, unit = next((pair for pair in units if abs(microseconds) >= pair[0]), units[-1])
    text = f"{abs(microseconds) / size:.4g} {unit}"
    return f"reversed by {text}" if microseconds < 0 else f"{text} apart"
