"""Writes SARIF 2.1.0, which GitHub's code scanning, editors and other tools show next to the code."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import PurePosixPath
from typing import Any
from urllib.parse import quote

from streamrace.detectors.order.races import Side
from streamrace.detectors.streams import stream_named
from streamrace.reports.formats.items import CheckedRun, Result, SourceLine, as_json
from streamrace.reports.formats.rules import RULES
from streamrace.reports.text import plain_text
from streamrace.trace.untrusted import visible

SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
FINGERPRINT = "streamRace/v1"
OWN, INSTALLED = "%SRCROOT%", "PACKAGES"
_ORDER = list(RULES.values())
_VERSION = "streamrace"


def text(run: CheckedRun) -> str:
    """Return the whole file."""
    return as_json({"$schema": SCHEMA, "version": "2.1.0", "runs": [_run(run)]})


def _run(run: CheckedRun) -> dict[str, Any]:
    version = run.findings.versions.get(_VERSION, "")
    driver = {
        "name": "streamrace",
        **({"semanticVersion": version} if _is_version(version) else {}),
        "rules": list(_rules()),
    }
    return {
        "tool": {"driver": driver},
        "columnKind": "unicodeCodePoints",
        "originalUriBaseIds": {
            OWN: {"description": {"text": "The top of the checkout."}},
            INSTALLED: {"description": {"text": "The folders that modules are imported from."}},
        },
        "invocations": [
            {
                "executionSuccessful": not run.unknown,
                "exitCode": run.findings.status,
                "toolExecutionNotifications": [
                    {"level": "error" if run.unknown else "note", "message": _message(sentence)}
                    for sentence in (run.findings.sentence, *run.notes, *run.gone)
                ],
            }
        ],
        "results": [_result(item, baseline=run.basis.gone is not None) for item in run.items],
        "properties": {"verdict": run.findings.verdict, "program": _shown(run.program)},
    }


def _is_version(text: str) -> bool:
    """Check whether the version has three numbers, as semantic versions do."""
    parts = text.split(".")
    return len(parts) == 3 and all(part.isascii() and part.isdigit() and str(int(part)) == part for part in parts)


def _rules() -> Iterator[dict[str, Any]]:
    for rule in _ORDER:
        yield {
            "id": rule.id,
            "name": "".join(part.capitalize() for part in rule.id.rpartition("/")[2].split("-")),
            "shortDescription": {"text": f"{rule.title}."},
            "fullDescription": {"text": rule.text},
            "help": {"text": rule.text},
            **({"helpUri": rule.more} if rule.more else {}),
            "defaultConfiguration": {"level": rule.level},
            "properties": {"tags": ["concurrency", "cuda", "correctness"], "precision": "very-high"},
        }


def _result(item: Result, *, baseline: bool) -> dict[str, Any]:
    mark = item.suppressed
    result: dict[str, Any] = {
        "ruleId": item.rule.id,
        "ruleIndex": _ORDER.index(item.rule),
        "level": item.rule.level,
        "message": _message(item.text),
        "locations": [_location(item.place)],
        "partialFingerprints": {FINGERPRINT: item.fingerprint},
    }
    related = [_location(place, "The wait that is there for another reason.") for place in item.sites]
    for word, (side, places) in zip(("first", "second"), item.accesses, strict=False):
        if places:
            related.append(_location(places[0], f"The {word} access: {side}."))
    for number, pair in enumerate(item.pairs, 2):
        for word, (side, places) in zip(("first", "second"), pair, strict=False):
            if places:
                related.append(_location(places[0], f"Pair {number} that the same wait orders, {word} access: {side}."))
    if related:
        result["relatedLocations"] = [{"id": number, **location} for number, location in enumerate(related, 1)]
    flows = [[_flow(side, places) for side, places in pair if places] for pair in (item.accesses, *item.pairs)]
    if any(flows):
        result["codeFlows"] = [{"threadFlows": threads} for threads in flows if threads]
    if baseline:
        result["baselineState"] = "unchanged" if item.state == "baseline" else "new"
    result["suppressions"] = []  # an empty list: known to be unsuppressed; without the list it would be unknown
    if mark is not None:
        inside = mark.kind == "comment"
        result["suppressions"] = [
            {
                "kind": "inSource" if inside else "external",
                "status": "accepted",
                "justification": _shown(mark.reason),
                **({"location": _location(SourceLine(mark.file, max(mark.line, 1), "", True))} if inside else {}),
            }
        ]
    result["properties"] = {"harm": item.witness.verdict if item.witness else "", **item.numbers}
    if item.witness is not None and item.witness.token:
        result["properties"] |= {"token": item.witness.token, "command": item.witness.command}
    return result


def _flow(side: Side, places: Sequence[SourceLine]) -> dict[str, Any]:
    """Return the calls that led to an access, outermost first; a stream is a thread."""
    locations = [{"location": _location(place)} for place in reversed(places)]
    locations[-1] = {"location": _location(places[0], f"{side}."), "importance": "essential"}  # type: ignore[dict-item]
    return {"id": _shown(side.stream), "message": _message(stream_named(side.stream)), "locations": locations}


def _location(place: SourceLine, message: str = "") -> dict[str, Any]:
    location: dict[str, Any] = {
        "physicalLocation": {
            "artifactLocation": {"uri": uri(place.path), "uriBaseId": OWN if place.own else INSTALLED},
            "region": {"startLine": place.line},
        }
    }
    if place.function:
        location["logicalLocations"] = [{"fullyQualifiedName": _shown(place.function), "kind": "function"}]
    if message:
        location["message"] = _message(message)
    return location


def uri(path: str) -> str:
    """Return a relative reference that never leads out of its base, whatever ``path`` holds."""
    parts = [part for part in PurePosixPath(plain_text(path)).parts if part not in ("/", "//", "..")]
    return quote("/".join(parts) or "unknown", safe="/")


def _message(text: str) -> dict[str, str]:
    """Escape a message: braces are doubled, as they mark arguments (3.11.5), and [x](y) would be a link (3.11.6)."""
    shown = _shown(text).replace("{", "{{").replace("}", "}}")
    if "](" in shown:
        shown = shown.replace("\\", "\\\\").replace("[", "\\[").replace("]", "\\]")
    return {"text": shown or "-"}


def _shown(text: str) -> str:
    return visible(plain_text(text), lines=False)
