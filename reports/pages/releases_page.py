"""Builds the report of the releases: the result of each unmodified DeepSpeed release in the same scenario."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from streamrace.reports.data.findings import Findings
from streamrace.reports.data.schema import does_not_hold, read_json
from streamrace.reports.pages.study_page import StudyMetadata, StudyReport, texts
from streamrace.reports.text import not_exercised
from streamrace.reports.text import race as sentences
from streamrace.studies.study import Fact
from streamrace.studies.table import Cell, Table
from streamrace.trace import wording

PLAIN, EDITED = "plain", "padded + edit"
FINDINGS = ("race", "stale", "uncovered", "wrong values")
_RUNS = {"plain": PLAIN, "edited": EDITED}  # by their names in the file
_KEYS = {name: key for key, name in _RUNS.items()}
_WORDS = (
    "release", "race", "stale", "uncovered", "wrong values", "plain", "padded + edit", "distance", "scenario",
    "reference", "hpZ", "secondary partition", "step", "phase", "rank", "hardware profile",
)  # fmt: skip


def load(folder: Path, ran: StudyMetadata) -> StudyReport:
    """Load the releases whose rows are next to ``folder``, in NAME.json. Raises :class:`ReportError`."""
    file = folder.parent / f"{folder.name}.json"
    rows: dict[str, Any] = {}
    for release, row in read_json(file).items():
        if isinstance(row, dict) and isinstance(row.get("failure"), str):
            rows[release] = {"failure": row["failure"]}
        elif isinstance(row, dict) and all(isinstance(row.get(name), dict) for name in _RUNS):
            rows[release] = {name: Findings.parsed(file, row[name]) for name in _RUNS}
        else:
            raise does_not_hold(file, f"'{release[:60]}' has neither two runs nor a failure")
    if not rows:
        raise does_not_hold(file, "it has no release")
    return study(rows, ran)


def study(rows: Mapping[str, Mapping[str, Any]], ran: StudyMetadata) -> StudyReport:
    """Return the report of the rows of :func:`streamrace.repro.commands.releases.row_of`, by release."""
    rows = dict(sorted(rows.items(), key=lambda item: _ordered(item[0])))
    frame = tidy(rows)
    verdict, tone, sentence = _judged(rows)
    runs = [row["plain"] for row in rows.values() if "plain" in row]
    scenario = dict(runs[0].scenario) if runs else {}
    scenario.pop("deepspeed", None)
    options = texts(scenario)
    versions = {**(runs[0].versions if runs else ran.versions), "deepspeed": ", ".join(rows)}
    facts = [
        Fact(
            "asked", "Which DeepSpeed releases, as they were released, keep hpZ's secondary partition right?", "release"
        ),
        Fact("releases", ", ".join(rows), "release"),
        Fact("plain", _scenario(options) if runs else "no release ran", "plain"),
        Fact("padded + edit", "the same with sizes that do not divide, and an edit between two steps", "padded + edit"),
        *(Fact(name, _with(frame, name), name) for name in FINDINGS),
    ]
    failed = [release for release, row in rows.items() if "failure" in row]
    if failed:
        facts.append(Fact("did not run", ", ".join(failed)))
    if ran.hardware:
        facts.append(Fact("hardware profile", ran.hardware, "hardware profile"))
    return StudyReport(
        kind="releases",
        title=f"{wording.count(len(rows), 'DeepSpeed release')}, unmodified",
        verdict=verdict,
        sentence=sentence,
        tone=tone,
        facts=facts,
        charts={},
        tables=[_table(rows), _matrix(frame, rows)],
        command=ran.command,
        versions={str(name): str(value) for name, value in versions.items()},
        configuration=options,
        metrics=frame,
        words=_WORDS,
    )


def tidy(rows: Mapping[str, Mapping[str, Any]]) -> pd.DataFrame:
    """Return a row per release and run. A release that does not run has rows without findings, and a ``failure``."""
    records = []
    for release, row in rows.items():
        for key, name in _RUNS.items():
            findings = row.get(key)
            wrong = findings.divergence.parameter if findings and findings.divergence else None
            causes = findings.causes if findings else ()
            records.append(
                {
                    "release": release,
                    "run": name,
                    "ran": findings is not None,
                    "verdict": findings.verdict if findings else "",
                    **{cause: cause in causes for cause in ("race", "stale", "uncovered")},
                    "wrong_values": bool(findings and findings.diverged),
                    "wrong_from_step": wrong.step if wrong else None,
                    "wrong_from_phase": wrong.phase if wrong else "",
                    "parameter": wrong.name if wrong else "",
                    "distance": findings.distance if findings else "",
                    "step_ns": findings.virtual_ns_per_step if findings else None,
                    "evidence": "; ".join(_evidence(findings).values()) if findings else "",
                    "failure": row.get("failure", ""),
                }
            )
    frame = pd.DataFrame(records)
    return frame.astype({"wrong_from_step": "Int64", "step_ns": "float64"})


def _judged(rows: Mapping[str, Mapping[str, Any]]) -> tuple[str, str, str]:
    """Return verdict, tone and sentence. The newest release counts most: users can upgrade to it."""
    newest = list(rows)[-1]
    causes = {release: _found(row) for release, row in rows.items() if "failure" not in row}
    older = [release for release in causes if release != newest]
    clauses = []
    clean = [release for release in older if not any(causes[release])]
    hard = [release for release in older if causes[release][1] and not causes[release][0]]
    bad = [release for release in older if causes[release][0]]
    if clean:
        clauses.append(f"{', '.join(clean)} {wording.plural_of(len(clean), 'is', 'are')} clean, too")
    if hard:
        clauses.append(
            f"{wording.count(len(hard), 'older one is', 'older ones are')} at fault with padding or edits alone"
        )
    if bad:
        names = ", ".join(f"{release} ({', '.join(causes[release][0])})" for release in bad)
        clauses.append(f"{names} {wording.plural_of(len(bad), 'is', 'are')} at fault in plain training")
    failed = [release for release in rows if release not in causes and release != newest]
    if failed:
        clauses.append(f"{', '.join(failed)} did not run")
    rest = "".join(f"; {clause}" for clause in clauses)
    name = f"DeepSpeed {newest}{', the newest that was tried,' if len(rows) > 1 else ''}"
    if newest not in causes:
        return "the newest release does not run", "warn", f"{name} does not run{rest}."
    plain, edited = causes[newest]
    if plain:
        return (
            "the newest release is at fault",
            "bad",
            f"{name} is at fault in plain training ({', '.join(plain)}){rest}.",
        )
    if edited:
        fault = f"{name} is at fault with padding or edits ({', '.join(edited)}){rest}."
        return "the newest release is at fault", "bad", fault
    rests = [rows[newest][run].rests for run in _RUNS]
    missing = list(dict.fromkeys(name for rest in rests if rest for name in rest.unexercised))
    behind = f" {not_exercised(missing)}" if missing else ""
    if hard or bad or failed:
        return (
            "older releases are at fault" if hard or bad else "some releases do not run",
            "warn",
            f"{name} is clean{rest}.{behind}",
        )
    nothing = f"{name} is clean: no race, nothing stale, nothing uncovered, every value right{rest}.{behind}"
    return "clean", "warn" if missing else "good", nothing


def _found(row: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """Return the findings of the plain run, and of the edited one."""
    plain, edited = (row[name].causes or ["wrong values"] * row[name].diverged for name in _RUNS)
    return plain, edited


def _matrix(frame: pd.DataFrame, rows: Mapping[str, Mapping[str, Any]]) -> Table:
    """Return a table with a row per release and run, and the evidence of its findings."""
    cells: list[list[Any]] = []
    for row in frame.to_dict("records"):
        findings = rows[row["release"]].get(_KEYS[row["run"]])
        evidence = [*_evidence(findings).values()] if findings else []
        if row["wrong_values"]:
            evidence.append(f"wrong from {_wrong(row)}")
        tone = "bad" if row["wrong_values"] else "warn"
        no = Cell("no" if row["ran"] else "did not run", "soft")
        states = (Cell("found", tone) if row[name.replace(" ", "_")] else no for name in FINDINGS)
        cells.append([f"{row['release']}, {row['run']}", *states, "; ".join(evidence)])
    note = "Each release ran twice. Red: values are wrong; yellow: every value came out right."
    return Table("What was found in which release", ["release", *FINDINGS, "evidence"], cells, note, brief=False)


def _table(rows: Mapping[str, Mapping[str, Any]]) -> Table:
    cells: list[list[Any]] = []
    for release, row in rows.items():
        if "failure" in row:
            cells.append([release, Cell("does not run", "warn"), "", row["failure"], "", ""])
            continue
        evidence = dict.fromkeys([*_evidence(row["plain"]).values(), *_evidence(row["edited"]).values()])
        parameter = row["plain"].divergence and row["plain"].divergence.parameter
        wrong = f"step {parameter.step} {parameter.phase}" if parameter else "never"
        distance = " / ".join(row[name].distance.replace("nan", "not finite") for name in _RUNS)
        cells.append([release, *map(_verdict, _found(row)), "; ".join(evidence), wrong, distance])
    return Table(
        "Releases, each run twice",
        ["release", PLAIN, EDITED, "the race's two lines, or the evidence", "wrong values from (plain)", "distance"],
        cells,
    )


def _verdict(names: Sequence[str]) -> Cell:
    return Cell(", ".join(names), "bad") if names else Cell("clean", "good")


def _evidence(findings: Findings) -> dict[str, str]:
    """Return by finding: the first race's two lines; a stale partition's version; the count of unwritten bytes."""
    evidence = {}
    for race in findings.races[:1]:
        evidence["race"] = f"{sentences.access(race.first)} | {sentences.access(race.second)}"
    stale = findings.stale
    if stale:
        before = "before the edit after" if stale.edited else "of"
        evidence["stale"] = f"{stale.phase} of step {stale.step} holds values {before} step {stale.version}"
    for read in findings.uncovered[:1]:
        evidence["uncovered"] = f"{read.nbytes} bytes that nobody wrote"
    return evidence


def _wrong(row: Mapping[Any, Any]) -> str:
    if pd.isna(row["wrong_from_step"]):
        return "a loss"
    return f"step {row['wrong_from_step']} {row['wrong_from_phase']}, {row['parameter']}"


def _with(frame: pd.DataFrame, name: str) -> str:
    """Return the releases with this finding."""
    rows = frame[frame[name.replace(" ", "_")]]
    plain = list(rows.release[rows.run == PLAIN])
    more = [release for release in rows.release[rows.run == EDITED] if release not in plain]
    return (
        "; ".join([*([", ".join(plain)] if plain else []), *([f"{EDITED} alone: {', '.join(more)}"] if more else [])])
        or "none"
    )


def _scenario(options: Mapping[str, str]) -> str:
    parts = [f"{options.get('model', '?')} {options.get('size', '')}".strip()]
    parts += [f"{options[name]} {word}" for name, word in (("ranks", "ranks"), ("nodes", "nodes")) if name in options]
    parts += [
        f"{word} {options[name]}"
        for name, word in (("hpz", "hpZ"), ("accumulation", "accumulation"))
        if name in options
    ]
    parts += [f"{options[name]} {word}" for name, word in (("steps", "steps"),) if name in options]
    return ", ".join(parts + ([options["hardware"]] if "hardware" in options else []))


def _ordered(release: str) -> tuple[list[int], str]:
    """Return a sort key by number: 0.9.5 before 0.12.6."""
    return [int(part) for part in re.findall(r"\d{1,9}", release)], release
