"""Builds an incident's page, self-contained HTML that needs no network (:mod:`reports.pages.html`)."""

from __future__ import annotations

import json
import math
from pathlib import Path

from streamrace.detectors.live.finding import Cause, Finding, Kind
from streamrace.detectors.live.incident import Incident, IncidentError
from streamrace.reports.charts import incident_charts
from streamrace.reports.data.stamp import stamp
from streamrace.reports.pages import html
from streamrace.trace import wording

_RANKS = 16  # ranks that are listed individually

# Meanings of the words, for readers new to them.
_WORDS = {
    "step": "One update of the parameters by the optimizer. The first is step 1.",
    "micro-batch": "One forward and backward pass. Several may make up a step (gradient accumulation).",
    "phase": "Where in the step: forward pass, backward pass, or the optimizer's own step.",
    "rank": "One of the processes that train together, usually one for each device.",
    "part": "The rank, counted within its group, that holds the wrong part of a sharded parameter.",
    "NaN": "Not a number: the result of an undefined operation, such as 0/0.",
    "Inf": "A value beyond what the number format can hold, or a division by 0.",
    "module": "The part of the model, by its path in it.",
    "RNG state": "The state of the random number generators when the micro-batch began.",
    "order of execution": "The points are in the order in which this rank reached them within the step.",
}
_CAUSES = {
    Cause.DATA: "The batch itself is bad: probe at the data, not at the model.",
    Cause.FORWARD: "A module got good values and returned a bad one: an overflow, or a division by 0.",
    Cause.LOSS: "Everything the loss is computed from is good, and the loss is not.",
    Cause.GRADIENT: "The forward pass is good, and the backward pass computes a bad value.",
    Cause.OPTIMIZER: "What the optimizer keeps between steps is bad, though gradients are good.",
    Cause.STEP: "The parameters are bad after the optimizer's step; the evidence says what of it was good.",
    Cause.RACE: "Two overlapping accesses, one a write, in no certain order: on another day it may go right.",
    Cause.STALE: "A partition equals an older version of the parameter, though every access is ordered.",
    Cause.UNCOVERED: "A part of a partition that nothing ever wrote is read.",
    Cause.CORRUPTION: "Memory changed between two probes with no step between them, and stayed so.",
    Cause.GATHER: "What the all-gather delivered is not what it read.",
    Cause.SHARDING: "Bad after the all-gather and good before: one of these three, and checksums tell which.",
}
_KINDS = {
    Kind.INPUT: "A tensor of the batch.",
    Kind.OUTPUT: "What a module returns in the forward pass.",
    Kind.LOSS: "What training makes small.",
    Kind.OUTPUT_GRADIENT: "The gradient with respect to what a module returned.",
    Kind.GRADIENT: "The gradient with respect to a parameter, of one micro-batch, before ranks are averaged.",
    Kind.PARAMETER: "A parameter as training uses it: gathered from all ranks if it is sharded.",
    Kind.PRIMARY: "This rank's part of a sharded parameter, as the optimizer updates it.",
    Kind.SECONDARY: "A copy of a part, shared among the ranks of one node, that the backward pass gathers from (hpZ).",
    Kind.OPTIMIZER: "What the optimizer keeps between steps: moments, and the parameters in full precision.",
}


def write_page(incident: Incident, target: Path, *, when: str = "") -> None:
    """Write the page, whole or not at all. Raises :class:`IncidentError` if ``target`` cannot be written."""
    try:
        html.write(page(incident, when=when), target)
    except OSError as error:
        raise IncidentError(f"cannot write {target}: {error.strerror or error}; choose another --output") from error


def page(incident: Incident, *, when: str = "") -> str:
    """Return the page, reproducible as the first of a process. ``when``: the time at which the incident was written."""
    finding = incident.finding
    probes = incident.statistics.get(finding.rank, [])
    whose = finding.rank if finding.rank in incident.statistics else min(incident.statistics, default=None)
    return html.render(
        "incident.html",
        incident_charts.draw(finding, probes),
        title=f"Incident at step {finding.step}: {finding.cause}",
        stamp=stamp("Incident of the NaN watch", "", when),
        finding=finding,
        sentence=html.shortened(finding.sentence()),
        cause_means=_CAUSES[finding.cause],
        facts=_facts(incident),
        evidence=[html.shortened(line) for line in finding.evidence],
        spread=[html.shortened(line) for line in finding.spread],
        words=_words(finding),
        meanings=_WORDS,
        whose=whose,
        configuration=json.dumps(incident.configuration, indent=2, ensure_ascii=False, default=str),
        versions=incident.versions,
    )


def _facts(incident: Incident) -> list[tuple[str, str, str]]:
    """Return rows of name, meaning and value."""
    finding = incident.finding
    rows = [
        ("what", _KINDS[finding.kind], str(finding.kind)),
        ("cause", _CAUSES[finding.cause], str(finding.cause)),
        ("module", _WORDS["module"], finding.module or "the model"),
        ("parameter", "Its name in the model.", finding.parameter),
        ("detail", "Which of them, where a module or a batch has several.", finding.detail),
        ("step", _WORDS["step"], str(finding.step)),
        ("micro-batch", _WORDS["micro-batch"], str(finding.micro_batch)),
        ("phase", _WORDS["phase"], finding.phase),
        ("rank", _WORDS["rank"], f"{finding.rank} of {incident.world} (the first is 0)"),
        ("ranks that report it", "All that found something bad in this step.", wording.few(finding.ranks, _RANKS)),
        ("part", _WORDS["part"], f"rank {finding.part} of its group" if finding.part >= 0 else ""),
        ("bad values", f"{_WORDS['NaN']} {_WORDS['Inf']}", _bad(finding)),
        ("good values", "Smallest and largest of those that are good.", _good(finding)),
        ("version", "The step whose values a stale part holds.", str(finding.version) if finding.version >= 0 else ""),
        (
            "ranks without a record",
            "They ended before they could write what they knew.",
            wording.few(incident.missing, _RANKS),
        ),
    ]
    return [(name, meaning, html.shortened(value)) for name, meaning, value in rows if value]


def _bad(finding: Finding) -> str:
    if finding.nan or finding.inf:
        return f"{finding.nan} NaN and {finding.inf} Inf of {finding.numel}"
    return "its values were not watched" if finding.unknown else "none: the values are finite, and wrong"


def _good(finding: Finding) -> str:
    if math.isfinite(finding.low) and math.isfinite(finding.high):
        return f"{finding.low:.6g} to {finding.high:.6g}"
    return ""


def _words(finding: Finding) -> dict[str, str]:
    """Return the meanings of the words used, for paper and phones, which have no hover."""
    return {str(finding.cause): _CAUSES[finding.cause], str(finding.kind): _KINDS[finding.kind], **_WORDS}
