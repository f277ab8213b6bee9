"""Writes our own JSON for scripts: the findings as a flat list, with their state (fields: docs/how-to/ci.md)."""

from __future__ import annotations

from typing import Any

from streamrace.detectors.order.races import Side
from streamrace.reports.formats.items import CheckedRun, Result, SourceLine, as_json

FORMAT = "stream-race-results"
VERSION = 1


def text(run: CheckedRun) -> str:
    """Return the whole file."""
    states = [item.state for item in run.items]
    return as_json(
        {
            "format": FORMAT,
            "version": VERSION,
            "verdict": run.findings.verdict,
            "sentence": run.findings.sentence,
            "status": run.findings.status,
            "program": run.program,
            "counts": {state: states.count(state) for state in ("new", "baseline", "suppressed")},
            "results": [_result(item) for item in run.items],
            "gone": run.basis.gone,
            "notes": list(run.notes),
        }
    )


def _result(item: Result) -> dict[str, Any]:
    mark, witness = item.suppressed, item.witness
    return {
        "rule": item.rule.id,
        "level": item.rule.level,
        "message": item.message,
        "fingerprint": item.fingerprint,
        "state": item.state,
        "reason": mark.reason if mark else None,
        "place": _place(item.place),
        "accesses": [_access(side, places) for side, places in item.accesses],
        "pairs": [[_access(side, places) for side, places in pair] for pair in item.pairs],
        "waits": [_place(place) for place in item.sites],
        "harm": witness.verdict if witness else "",
        "says": witness.says if witness else "",
        "token": witness.token if witness else "",
        "command": witness.command if witness else "",
        **item.numbers,
    }


def _access(side: Side, places: tuple[SourceLine, ...]) -> dict[str, Any]:
    stack = [_place(place) for place in places]
    return {"access": side.access, "kernel": side.kernel, "stream": side.stream, "stack": stack}


def _place(place: SourceLine) -> dict[str, Any]:
    return {"file": place.path, "line": place.line, "function": place.function, "own": place.own}
