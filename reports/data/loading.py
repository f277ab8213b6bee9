"""A run's folder, read: for reports, and for a notebook.

``import reports; run = reports.load("runs/unstable"); run.steps.plot(x="step", y="loss")``. The frames are tidy: a row
is one thing that was seen, a column one property of it. Nothing in a folder is trusted: what does not fit is refused in
one sentence (:class:`ReportError`). A run that ended early has what it got to write, and empty frames for the rest.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from detectors import Moment, Name, Occurrence, Race, Side
from reports.data import checksums, findings, frames, schema, sources, tables
from reports.data.schema import ReportError
from reports.data.switched import SWITCHES
from simgpu.trace import Frame

__all__ = ["ReportError", "Run", "Source", "comparable", "load", "race_from_dict"]

# What may differ between runs that are compared: what decides when things happen, and what DeepSpeed fetches when and
# from where. A run under plain gloo computes the same bits whatever these say (tests/reports/test_load.py names all
# fields of a scenario, so that a new one has to be sorted in). Steps: the shorter run just ends earlier.
MAY_DIFFER = SWITCHES | frozenset(
    {
        "checkpoint_every",
        "resume",
        "hardware",
        "stands_for",
        "stands_for_micro_batch",
        "slow",
        "jitter",
        "timing_seed",
        "watch",
        "nodes",
        "hpz",
        "prefetch_bucket",
        "persistence",
        "overlap_comm",
        "checkpointing",
        "steps",
    }
)
_LONGEST = 60  # characters of an option's value in a message

STEPS = {
    "step": "int64",
    "micro_batch": "int64",
    "rank": "int64",
    "loss": "float64",
    "reference_loss": "float64",
    "gradient_norm": "float64",
    "reference_gradient_norm": "float64",
    "equal": "bool",
}
_SIDE = {"kernel": "str", "access": "str", "stream": "str", "place": "str"}
RACES = {
    "race": "int64",
    "kind": "str",
    **{f"{word}_{name}": dtype for word in ("first", "second") for name, dtype in _SIDE.items()},
    "missing_wait": "str",
    "occurrences": "int64",
    "shown": "int64",
    "margin_ns": "int64",
    "token": "str",
    "reason": "str",
}
ACCESSES = {
    "race": "int64",
    "example": "int64",
    "side": "str",
    "rank": "int64",
    "block": "int64",
    "lo": "int64",
    "hi": "int64",
    "op": "Int64",
    "kernel": "str",
    "access": "str",
    "stream": "str",
    "issuer": "str",
    "step": "int64",
    "micro_batch": "int64",
    "phase": "str",
    "start_ns": "int64",
    "end_ns": "int64",
    "place": "str",
    "shown": "bool",
    "margin_ns": "int64",
}


@dataclass(frozen=True)
class Source:
    """Lines of source code around ``line`` of ``file``, as they were when the run ran.

    ``text[0]`` is line number ``first``; long lines are cut.
    """

    file: str
    line: int
    first: int
    text: tuple[str, ...]


@dataclass(frozen=True)
class Run:
    """A run's folder, read. Times are virtual nanoseconds; steps, micro-batches, races and examples count from 1.

    ``name``: the folder's.

    ``findings``: ``findings.json``, checked. A verdict of ``unknown`` says that the run was killed before it wrote it.

    ``steps``: a row for each loss. step, micro_batch, rank, loss, reference_loss, gradient_norm,
    reference_gradient_norm (DeepSpeed's, over all ranks, in the row of a step's last micro-batch; else NaN), equal
    (the losses are, bit for bit).

    ``races``: a row for each race. race, kind; first_kernel, first_access, first_stream, first_place (``file:line``, or
    empty) and the same of the second access; missing_wait, occurrences, shown, margin_ns; token, reason of its witness.

    ``accesses``: a row for each of the two accesses of each example of a race. race, example, side (first, second),
    rank, block, lo, hi (bytes of the block), op (none for a free), kernel, access, stream, issuer, step, micro_batch,
    phase, start_ns, end_ns, place, shown, margin_ns.

    ``checksums``: a row for each parameter and step. parameter, step, uses; wrong: those that differ from the
    reference; of these not_finite: hold values that are not finite, and older: every wrong part holds what the
    reference held in an earlier step; first_rank: the lowest rank with a wrong use, or -1.

    ``sources``: by ``file:line``, around the innermost lines of the races' stacks. Runs of earlier versions have none.
    """

    name: str
    folder: Path
    findings: Mapping[str, Any]
    steps: pd.DataFrame
    races: pd.DataFrame
    accesses: pd.DataFrame
    checksums: pd.DataFrame
    sources: Mapping[str, Source] = field(default_factory=dict)


def load(folder: str | Path) -> Run:
    """Read the folder of a run. Raises :class:`ReportError` where it is none, or holds what a run does not write."""
    where = Path(folder)
    found = _findings(where)
    return Run(
        name=where.resolve().name.encode("utf-8", "backslashreplace").decode(),  # bytes that are no text, as codes
        folder=where,
        findings=found,
        steps=_steps(where / "metrics.csv"),
        races=_races(found["races"]),
        accesses=_accesses(found["races"]),
        checksums=_checksums(where),
        sources=sources_of(where / "sources.json"),
    )


def comparable(runs: Sequence[Run]) -> None:
    """Raises :class:`ReportError` for runs whose values need not be equal: another model, other data, another seed.

    An option that one of two runs does not know (it is of an earlier version) is not compared.
    """
    for at, run in enumerate(runs):
        for other in runs[:at]:
            if run.name == other.name:
                raise ReportError(
                    f"{other.folder} and {run.folder} have the same name, by which a report tells runs apart: rename "
                    "one of the folders"
                )
    for run in runs[1:]:
        ours, theirs = runs[0].findings["scenario"], run.findings["scenario"]
        differ = [name for name in ours if name in theirs and name not in MAY_DIFFER and ours[name] != theirs[name]]
        if differ:
            told = ", ".join(f"{name} ({_value(ours[name])} and {_value(theirs[name])})" for name in differ)
            raise ReportError(
                f"{runs[0].folder} and {run.folder} cannot be compared, as they compute other values: they differ in "
                f"{told}. Choose runs that differ in the fix or the timing only"
            )


def race_from_dict(data: Mapping[str, Any]) -> Race:
    """The race that :meth:`detectors.Race.as_dict` told of."""
    return Race(
        kind=data["kind"],
        first=_side(data["first"]),
        second=_side(data["second"]),
        occurrences=data["occurrences"],
        shown=data["shown"],
        margin_ns=data["margin_ns"],
        ranks=tuple(data["ranks"]),
        names=tuple(Name(one["kind"], one["name"]) for one in data["names"]),
        examples=tuple(_occurrence(one) for one in data["examples"]),
    )


def _side(data: Mapping[str, Any]) -> Side:
    stack = tuple(Frame(one["file"], one["line"], one["function"]) for one in data["stack"])
    return Side(data["kernel"], data["access"], stack, data["stream"], data["issuer"])


def _occurrence(data: Mapping[str, Any]) -> Occurrence:
    moments = {side: Moment(*(data[side][name] for name in Moment._fields)) for side in ("first", "second")}
    return Occurrence(*({**data, **moments}[name] for name in Occurrence._fields))


# -- files -----------------------------------------------------------------------------------------


def _findings(folder: Path) -> dict[str, Any]:
    file, scenario = folder / "findings.json", folder / "scenario.json"
    if file.is_file():
        data = schema.read_json(file)
        model = schema.checked(schema.FindingsFile, file, data, named=findings.FORMAT, version=findings.VERSION)
        return model.model_dump(mode="json")
    if scenario.is_file():
        return _killed(schema.read_json(scenario))
    if (asked := folder / "check.json").is_file():
        return _killed(dict(schema.read_json(asked).get("asked") or {}))
    raise ReportError(f"{folder} is not a run: {_instead(folder)}")


def _killed(scenario: dict[str, Any]) -> dict[str, Any]:
    """What is known of a run that was killed, with its parent: no more than what it was to do."""
    why = "the run ended before it could write its findings"
    return schema.FindingsFile(
        format=findings.FORMAT,
        version=findings.VERSION,
        verdict="unknown",
        sentence=f"{why[0].upper()}{why[1:]}.",
        failure=why,
        steps_done=0,
        divergence=None,
        races=[],
        scenario=scenario,
        versions={},
    ).model_dump(mode="json")


def _instead(folder: Path) -> str:
    """What the folder is, and what to do."""
    if not folder.exists():
        return "there is no such folder. Choose one that 'python -m repro run' wrote, such as runs/unstable"
    if not folder.is_dir():
        return "it is a file. Choose the folder of a run"
    if (folder / "incident.json").exists():
        return "it is an incident of the NaN watch. 'python -m repro report' makes a page of that as well"
    if (folder / "job.json").exists():
        return "it is a dry run, which computes no values. Choose a folder that 'python -m repro run' wrote"
    inner = sorted(one.parent.name for name in ("findings.json", "scenario.json") for one in folder.glob(f"*/{name}"))
    if inner:
        return f"it holds runs. Choose one of them, such as {folder / inner[0]}"
    return "it holds neither findings.json nor scenario.json. Choose a folder that 'python -m repro run' wrote"


def _steps(file: Path) -> pd.DataFrame:
    if not file.is_file():
        return empty(STEPS)
    frame = frames.read(file, STEPS, optional=("gradient_norm", "reference_gradient_norm"))
    if ((frame[["step", "micro_batch"]] < 1).any(axis=None)) or (frame["rank"] < 0).any():
        raise schema.does_not_hold(file, "a step, micro-batch or rank is below its first")
    return frame


def _checksums(folder: Path) -> pd.DataFrame:
    whole, uses = folder / "checksums.parquet", folder / "parameters.csv"
    if whole.is_file():
        return checksums.read(whole)
    if uses.is_file():
        return checksums.of(frames.read(uses, tables.PARAMETERS, nothing={"reference_checksums": "nan"}))
    return empty(checksums.COLUMNS)


def sources_of(file: Path) -> dict[str, Source]:
    """The lines in a ``sources.json``, by ``file:line``; none where it is missing. Raises :class:`ReportError`."""
    if not file.is_file():
        return {}
    data = schema.read_json(file)
    model = schema.checked(schema.SourcesFile, file, data, named=sources.FORMAT, version=sources.VERSION)
    return {f"{one.file}:{one.line}": Source(one.file, one.line, one.first, tuple(one.text)) for one in model.sources}


# -- frames ----------------------------------------------------------------------------------------


def empty(columns: Mapping[str, str]) -> pd.DataFrame:
    """No rows of these columns and dtypes."""
    return framed([], columns)


def framed(rows: Sequence[tuple[Any, ...]], columns: Mapping[str, str]) -> pd.DataFrame:
    return pd.DataFrame(rows, columns=list(columns)).astype(dict(columns))


def _races(races: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    rows = []
    for number, race in enumerate(races, 1):
        witness = race["witness"] or {"token": "", "reason": ""}
        sides = [
            value
            for side in (race["first"], race["second"])
            for value in (side["kernel"], side["access"], side["stream"], place(side))
        ]
        counts = (race["missing_wait"], race["occurrences"], race["shown"], race["margin_ns"])
        rows.append((number, race["kind"], *sides, *counts, witness["token"], witness["reason"]))
    return framed(rows, RACES)


def _accesses(races: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    rows = []
    for number, race in enumerate(races, 1):
        for at, example in enumerate(race["examples"], 1):
            for word in ("first", "second"):
                side, moment = race[word], example[word]
                where = (example["rank"], example["block"], example["lo"], example["hi"])
                what = (moment["op"], side["kernel"], side["access"], side["stream"], side["issuer"])
                when = (moment["step"], moment["micro_batch"], moment["phase"], moment["start"], moment["end"])
                shown = (place(side), example["shown"], example["margin_ns"])
                rows.append((number, at, word, *where, *what, *when, *shown))
    return framed(rows, ACCESSES)


def place(side: Mapping[str, Any]) -> str:
    """The innermost ``file:line`` of a race's side, as :attr:`Run.sources` names it; empty where there is no stack."""
    return f"{side['stack'][0]['file']}:{side['stack'][0]['line']}" if side["stack"] else ""


def _value(value: Any) -> str:
    text = str(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
