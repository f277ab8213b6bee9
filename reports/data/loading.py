"""Reads a run's folder, for reports and notebooks.

``from streamrace import reports; run = reports.load("runs/unstable"); run.steps.plot(x="step", y="loss")``. The frames
are tidy: a row is one observation, a column one property of it. Nothing in a folder is trusted: contents that do not
fit are refused in one sentence (:class:`ReportError`). A run that ended early has the rows written until then, and
empty frames for the rest.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import pandas as pd
from markupsafe import Markup

from streamrace.detectors import Race
from streamrace.reports.data import checksums, frames, schema, sources, tables
from streamrace.reports.data.differences import SWITCHES, switched
from streamrace.reports.data.findings import Findings, Verdict
from streamrace.reports.data.schema import Judged, ReportError
from streamrace.reports.data.sources import Source
from streamrace.reports.data.stamp import model_of
from streamrace.trace import wording

__all__ = ["ReportError", "Run", "Source", "comparable", "load"]

# Options that may differ between compared runs: those that decide when things happen, and what DeepSpeed fetches when
# and from where. A run under plain gloo computes the same bits for all their values (tests/reports/test_load.py names
# all fields of a scenario, so that a new field has to be classified). Steps: the shorter run just ends earlier.
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
_LISTED = 8  # runs in a message
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
    "manifested": "int64",
    "slack_ns": "int64",
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
    "manifested": "bool",
    "slack_ns": "int64",
}


class Named(Protocol):
    """A read folder and its name."""

    @property
    def name(self) -> str: ...
    @property
    def folder(self) -> Path: ...


class ReadRun(Named, Protocol):
    """The part of a read folder that its races need: :class:`Run` has it, and more."""

    @property
    def file(self) -> Findings: ...
    @property
    def sources(self) -> Mapping[str, Source]: ...


@dataclass(frozen=True, repr=False)
class Run:
    """A run's folder, read. Times are virtual nanoseconds; steps, micro-batches, races and examples count from 1.

    ``name``: the folder's.

    ``findings``: ``findings.json``, checked; ``file``: the same with types, its races as :class:`detectors.Race`. A
    verdict of ``unknown`` may mean that the run was killed before it wrote the file.

    ``steps``: a row per loss. step, micro_batch, rank, loss, reference_loss, gradient_norm, reference_gradient_norm
    (DeepSpeed's, over all ranks, in the row of a step's last micro-batch; else NaN), equal (the losses are, bit for
    bit).

    ``races``: a row per race. race, kind; first_kernel, first_access, first_stream, first_place (``file:line``, or
    empty) and the same of the second access; missing_wait, occurrences, manifested, slack_ns; token, reason of its
    witness.

    ``accesses``: a row for each of the two accesses of each example of a race. race, example, side (first, second),
    rank, block, lo, hi (bytes of the block), op (none for a free), kernel, access, stream, issuer, step, micro_batch,
    phase, start_ns, end_ns, place, manifested, slack_ns.

    ``checksums``: a row per parameter and step. parameter, step, uses; wrong: uses that differ from the reference; of
    these not_finite: hold values that are not finite, and older: every wrong part holds what the reference held in an
    earlier step; first_rank: the lowest rank with a wrong use, or -1; turn: index of the first wrong use among its
    rank's uses in the step, or -1 (none, or unknown).

    ``sources``: by ``file:line``, around the innermost lines of the races' stacks. Runs of earlier versions have none.
    """

    name: str
    folder: Path
    findings: Mapping[str, Any]
    file: Findings
    steps: pd.DataFrame
    races: pd.DataFrame
    accesses: pd.DataFrame
    checksums: pd.DataFrame
    sources: Mapping[str, Source] = field(default_factory=dict)

    def __repr__(self) -> str:
        """Return a short description, shown at the end of a notebook's cell."""
        frames = ", ".join(f"{name} ({len(frame)} rows)" for name, frame in self._frames().items())
        return f"Run({self.name!r}: {', '.join(self._summary().values())}; {frames})"

    def _repr_html_(self) -> str:
        """Return a notebook's description instead. A run may come from anybody, so all of it is escaped."""
        rows = [
            *self._summary().items(),
            *((name, wording.count(len(frame), "row")) for name, frame in self._frames().items()),
        ]
        cells = Markup("").join(Markup("<tr><th>{}</th><td>{}</td></tr>").format(name, text) for name, text in rows)
        head = Markup("<p><b>{}</b>: {}</p>").format(self.name, self.file.sentence)
        return head + Markup("<table>{}</table>").format(cells)

    def _summary(self) -> dict[str, str]:
        findings = self.file
        facts = {
            "verdict": findings.verdict,
            "model": model_of(self.findings),
            "fix": switched(findings.scenario, findings.versions, ""),
            "done": wording.count(findings.steps_done, "step"),
            "found": wording.count(len(findings.races), "race"),
        }
        return {name: text for name, text in facts.items() if text}

    def _frames(self) -> dict[str, pd.DataFrame]:
        return {name: getattr(self, name) for name in ("steps", "races", "accesses", "checksums")}


def load(folder: str | Path, result: Findings | None = None) -> Run:
    """Read the folder of a run, but for its findings if they are ``found``. Raises :class:`ReportError` if it is no
    run, or holds contents that no run writes.
    """
    where = Path(folder)
    findings, file = (_whole(result), result) if result else _findings(where)
    return Run(
        name=where.resolve().name.encode("utf-8", "backslashreplace").decode(),  # invalid UTF-8 is shown as codes
        folder=where,
        findings=findings,
        file=file,
        steps=_steps(where / "metrics.csv"),
        races=_races(file.races),
        accesses=_accesses(file.races),
        checksums=_checksums(where),
        sources=sources.read(where),
    )


def comparable(runs: Sequence[Run]) -> None:
    """Raise :class:`ReportError` for runs whose values need not be equal: another model, other data, another seed.

    An option that one of two runs lacks (as it is of an earlier version) is not compared.
    """
    distinct(runs)
    for run in runs[1:]:
        base, second = runs[0].findings["scenario"], run.findings["scenario"]
        differ = [name for name in base if name in second and name not in MAY_DIFFER and base[name] != second[name]]
        if differ:
            details = ", ".join(f"{name} ({_value(base[name])} and {_value(second[name])})" for name in differ)
            raise ReportError(
                f"{runs[0].folder} and {run.folder} cannot be compared, as they compute other values: they differ in "
                f"{details}. Choose runs that differ in the fix or the timing only"
            )


def distinct(runs: Sequence[Named]) -> None:
    """Raise :class:`ReportError` for two runs of the same name."""
    for at, run in enumerate(runs):
        for other in runs[:at]:
            if run.name == other.name:
                raise ReportError(
                    f"{other.folder} and {run.folder} have the same name, by which a report distinguishes runs: rename "
                    "one of the folders"
                )


# -- files -----------------------------------------------------------------------------------------


def _findings(folder: Path) -> tuple[dict[str, Any], Findings]:
    file, scenario = folder / "findings.json", folder / "scenario.json"
    if file.is_file():
        data = schema.read_json(file)
        findings = Findings.parsed(file, data)
        return _whole(findings) | data, findings
    if scenario.is_file():
        return _killed(schema.read_json(scenario))
    if (check_file := folder / "check.json").is_file():
        return _killed(dict(schema.read_json(check_file).get("asked") or {}))
    raise not_a_run(folder)


def _killed(scenario: dict[str, Any]) -> tuple[dict[str, Any], Findings]:
    """Return the findings of a run that was killed with its parent: no more than its scenario."""
    why = "the run ended before it could write its findings"
    findings = Findings(
        verdict=Verdict.UNKNOWN,
        sentence=f"{why[0].upper()}{why[1:]}.",
        failure=why,
        steps_done=0,
        divergence=None,
        races=[],
        scenario=scenario,
        versions={},
    )
    return _whole(findings), findings


def _whole(findings: Findings) -> dict[str, Any]:
    """Return the findings as data, with the fields that are not written on its first level."""
    written: dict[str, Any] = json.loads(findings.text())
    return findings.model_dump(exclude={"missing_waits"}) | written


def not_a_run(folder: Path) -> ReportError:
    """Return the error for a folder without findings."""
    return ReportError(f"{folder} is not a run: {_instead(folder)}")


def _instead(folder: Path) -> str:
    """Describe the folder, and suggest what to do."""
    if not folder.exists():
        listing = _runs(folder.parent) or _runs(Path("runs"))
        return "there is no such folder. " + (listing or "'streamrace check' and 'streamrace run' write one")
    if not folder.is_dir():
        return "it is a file. Choose the folder of a run"
    if (folder / "incident.json").exists():
        return "it is an incident of the NaN watch. 'streamrace report' makes a page of that as well"
    if (folder / "job.json").exists():
        return "it is a dry run that did not come to its end. Run it again"
    if any((folder / name).exists() for name in ("scenario.json", "check.json")):
        return "it ended before it could write what it found. Run it again"
    if listing := _runs(folder):
        return f"it holds runs. {listing}"
    return "it holds neither findings.json nor scenario.json. Choose a folder that 'streamrace run' wrote"


def _runs(folder: Path) -> str:
    """Return the runs in ``folder`` as the end of a sentence, the newest first; empty if it holds none."""
    written: dict[Path, float] = {}
    for file in (path for name in ("findings.json", "scenario.json") for path in folder.glob(f"*/{name}")):
        with suppress(OSError):
            written[file.parent] = max(file.stat().st_mtime, written.get(file.parent, 0))
    names = sorted(written, key=lambda path: (-written[path], path))
    return f"Choose one of these, the newest first: {wording.few(names, _LISTED)}" if names else ""


def _steps(file: Path) -> pd.DataFrame:
    if not file.is_file():
        return empty(STEPS)
    frame = frames.read(file, STEPS, optional=("gradient_norm", "reference_gradient_norm"))
    if ((frame[["step", "micro_batch"]] < 1).any(axis=None)) or (frame["rank"] < 0).any():
        raise schema.does_not_hold(file, "a step, micro-batch or rank is below its first")
    return frame


def _checksums(folder: Path) -> pd.DataFrame:
    table, uses = folder / "checksums.parquet", folder / "parameters.csv"
    if table.is_file():
        return checksums.read(table)
    if uses.is_file():
        return checksums.of(frames.read(uses, tables.PARAMETERS, nothing={"reference_checksums": "nan"}))
    return empty(checksums.COLUMNS)


# -- frames ----------------------------------------------------------------------------------------


def empty(columns: Mapping[str, str]) -> pd.DataFrame:
    """Return a frame of these columns and dtypes without rows."""
    return framed([], columns)


def framed(rows: Sequence[tuple[Any, ...]], columns: Mapping[str, str]) -> pd.DataFrame:
    return pd.DataFrame(rows, columns=list(columns)).astype(dict(columns))


def _races(races: Sequence[Judged]) -> pd.DataFrame:
    rows = []
    for number, race in enumerate(races, 1):
        row: dict[str, Any] = (
            {"race": number, "token": "", "reason": ""} | vars(race) | {"missing_wait": race.missing_wait}
        )
        row |= vars(race.witness) if race.witness else {}
        for word in ("first", "second"):
            side = row[word]
            row |= {f"{word}_{name}": value for name, value in vars(side).items()} | {f"{word}_place": side.place}
        rows.append(tuple(row[name] for name in RACES))
    return framed(rows, RACES)


def _accesses(races: Sequence[Race]) -> pd.DataFrame:
    rows = []
    for number, race in enumerate(races, 1):
        for at, example in enumerate(race.examples, 1):
            for word, side, when in (("first", race.first, example.first), ("second", race.second, example.second)):
                row: dict[str, Any] = {"race": number, "example": at, "side": word, "place": side.place, **vars(side)}
                row |= example._asdict() | when._asdict() | {"start_ns": when.start, "end_ns": when.end}
                rows.append(tuple(row[name] for name in ACCESSES))
    return framed(rows, ACCESSES)


def _value(value: Any) -> str:
    text = str(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
