"""Draws the two charts of an incident: extremes by step, and which points were bad when.

Colours are of middle lightness on a transparent ground, so that they are readable in light and dark mode.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from bokeh.models import ColumnDataSource, FixedTicker, HoverTool, Range1d

from streamrace.detectors.live.finding import Finding, Kind, ProbePoint, ProbeResult
from streamrace.reports.charts.frame import Chart, Key, over_steps, tail, tame

_POINTS = 60  # rows of the map
_LABEL, _DETAIL = 27, 10  # characters of a name next to the map, and of the detail that distinguishes equal names
_TOLD = 48  # characters of a name in a tooltip: a phone is no wider
_GOOD, _FOUND, _BEYOND = "#8585853d", "#3b82d6", "#9a6fd8"
# Colour by upper limit of the count of bad values (exclusive).
_BAD = ((10, "#e3b23c", "1 to 9"), (1000, "#e07b39", "10 to 999"), (math.inf, "#cf3a3a", "1000 and more"))
_LINES = {
    Kind.INPUT: ("#7c83a3", [2, 2]),
    Kind.OUTPUT: ("#3b82d6", []),
    Kind.LOSS: ("#c2850c", []),
    Kind.OUTPUT_GRADIENT: ("#2f9e63", [6, 3]),
    Kind.GRADIENT: ("#2f9e63", []),
    Kind.PARAMETER: ("#a663cc", []),
    Kind.PRIMARY: ("#1f9aa8", []),
    Kind.SECONDARY: ("#1f9aa8", [6, 3]),
    Kind.OPTIMIZER: ("#b0713f", []),
}


def draw(finding: Finding, probes: Sequence[ProbeResult]) -> dict[str, Chart]:
    """Draw the charts for which the statistics of one rank suffice."""
    drawn = {"extremes": _extremes(finding, probes), "map": _map(finding, probes)}
    return {name: chart for name, chart in drawn.items() if chart is not None}


def _extremes(finding: Finding, probes: Sequence[ProbeResult]) -> Chart | None:
    largest: dict[Kind, dict[int, float]] = {}
    for probe in probes:
        value = max((abs(bound) for bound in (probe.low, probe.high) if math.isfinite(bound)), default=0.0)
        if value > 0:  # a log scale has no 0
            by_step = largest.setdefault(probe.point.kind, {})
            by_step[probe.step] = max(by_step.get(probe.step, 0.0), value)
    if not largest:
        return None
    steps = _steps(finding, probes)
    values = [value for by_step in largest.values() for value in by_step.values()]
    low, high = max(min(values) / 4, 1e-307), min(max(values), 1e307) * 4
    drawn = over_steps(steps, Range1d(start=low, end=high), 300, y_axis_type="log")
    drawn.yaxis.axis_label = "largest absolute value"
    lines = []
    for kind, by_step in sorted(largest.items(), key=lambda item: list(_LINES).index(item[0])):
        colour, dash = _LINES[kind]
        source = ColumnDataSource(
            {
                "step": steps,
                "value": [by_step.get(step, math.nan) for step in steps],
                "kind": [str(kind)] * len(steps),
            }
        )
        drawn.line("step", "value", source=source, color=colour, line_width=2, line_dash=dash)
        lines.append(drawn.scatter("step", "value", source=source, color=colour, size=6))
    drawn.vspan([finding.step], line_color=_BAD[-1][1], line_dash=[4, 4], line_alpha=0.7)
    at = largest.get(finding.kind, {}).get(finding.step, high / 2)
    drawn.scatter([finding.step], [at], marker="x", size=16, color=_BAD[-1][1], line_width=4)
    drawn.add_tools(
        HoverTool(renderers=lines, tooltips=[("kind", "@kind"), ("step", "@step"), ("largest", "@value{0.000e+0}")])
    )
    keys = [Key("line", str(kind), _LINES[kind][0], " ".join(map(str, _LINES[kind][1]))) for kind in largest]
    return Chart(
        drawn,
        "The last steps' extremes",
        "The largest absolute good value of each kind, by step, on a logarithmic scale.",
        [*keys, Key("cross", "the first bad point (at the top if no good value is left there)", _BAD[-1][1])],
    )


def _map(finding: Finding, probes: Sequence[ProbeResult]) -> Chart | None:
    if not probes:
        return None
    target = ProbePoint(finding.kind, finding.module, finding.parameter, finding.detail)
    cells: dict[ProbePoint, dict[int, list[ProbeResult]]] = {}
    for probe in probes:
        cells.setdefault(probe.point, {}).setdefault(probe.step, []).append(probe)
    rows = _relevant(finding, target, probes)
    columns: dict[str, list[Any]] = {
        name: [] for name in ("step", "row", "colour", "name", "kind", "bad", "of", "extremes")
    }
    for row, point in enumerate(rows):
        for step, results in cells[point].items():
            bad = sum(probe.nan + probe.plus_inf + probe.minus_inf for probe in results)
            ends = [bound for probe in results for bound in (probe.low, probe.high) if math.isfinite(bound)]
            columns["step"].append(step)
            columns["row"].append(row)
            columns["colour"].append(_colour(bad, beyond=any(probe.beyond for probe in results)))
            columns["name"].append(tame(point.parameter or point.module or "the model", _TOLD))
            columns["kind"].append(tame(f"{point.kind} {point.detail}".strip(), _TOLD))
            columns["bad"].append(str(bad))
            columns["of"].append(str(sum(probe.numel for probe in results)))
            columns["extremes"].append(f"{min(ends):.4g} to {max(ends):.4g}" if ends else "none")
    drawn = over_steps(_steps(finding, probes), Range1d(start=len(rows) - 0.5, end=-0.5), 15 * len(rows) + 60)
    drawn.ygrid.grid_line_color = None
    drawn.yaxis.major_label_text_font_size = "11px"
    drawn.yaxis.ticker = FixedTicker(ticks=list(range(len(rows))))
    drawn.yaxis.major_label_overrides = {row: _name(point) for row, point in enumerate(rows)}
    boxes = drawn.rect(
        "step", "row", 0.94, 0.88, source=ColumnDataSource(dict(columns)), fill_color="colour", line_color=None
    )
    if target in rows:
        drawn.rect([finding.step], [rows.index(target)], 0.94, 0.88, fill_color=None, line_color=_FOUND, line_width=3)
    hover = [("name", "@name"), ("kind", "@kind"), ("step", "@step"), ("bad", "@bad of @of"), ("good", "@extremes")]
    drawn.add_tools(HoverTool(renderers=[boxes], tooltips=hover))
    left = len(cells) - len(rows)
    return Chart(
        drawn,
        "Which points were bad, and when",
        f"{len(rows)} of {len(cells)} points: the bad ones first, then those nearest to the first bad one."
        if left
        else "Every point that was probed: the bad ones first, then those nearest to the first bad one.",
        [
            Key("box", "good", _GOOD),
            *(Key("box", f"{text} bad", colour) for _, colour, text in _BAD),
            Key("box", "beyond the bound", _BEYOND),
            Key("frame", "the first bad point", _FOUND),
        ],
    )


def _relevant(finding: Finding, target: ProbePoint, probes: Sequence[ProbeResult]) -> list[ProbePoint]:
    """Return ``found``, the bad points in the order of execution, then good points by distance from the finding."""
    bad = [probe.point for probe in probes if probe.point == target]  # a finite wrong value does not count as bad
    bad += [probe.point for probe in probes if probe.bad and probe.step == finding.step]
    bad += [probe.point for probe in probes if probe.bad]
    same_step = [probe for probe in probes if probe.step == finding.step] or list(probes)
    near = sorted(same_step, key=lambda probe: (abs(probe.order - finding.order), probe.step, probe.order))
    ranked = dict.fromkeys([*bad, *(probe.point for probe in near), *(probe.point for probe in probes)])
    return list(ranked)[:_POINTS]


def _steps(finding: Finding, probes: Sequence[ProbeResult]) -> list[int]:
    return sorted({probe.step for probe in probes} | {finding.step})


def _colour(bad: int, *, beyond: bool) -> str:
    if bad:
        return next(colour for most, colour, _ in _BAD if bad < most)
    return _BEYOND if beyond else _GOOD


def _name(point: ProbePoint) -> str:
    """Return a name short enough for the map's axis: the end of a path says more than its beginning."""
    name = tail(point.parameter or point.module or "the model", _LABEL)
    kind = point.kind.removesuffix(" partition")  # the map gets the width of a phone that the names leave
    return f"{name} · {kind} {tame(point.detail, _DETAIL)}".strip()
