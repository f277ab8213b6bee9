"""Draws the changed assumptions: the slack of the closest harmful pair, with a panel per release."""

from __future__ import annotations

from typing import Any

from matplotlib.patches import Patch
from matplotlib.ticker import FixedLocator

from streamrace.reports.charts.frame import TEXT, Chart
from streamrace.reports.pictures.figures import bars, key, panels, plain
from streamrace.studies.declared.why import compared
from streamrace.studies.study import Frames
from streamrace.studies.table import each
from streamrace.studies.why import BASE

_REVERSED, _LUCK = "#cf3a3a", "#e3b23c"
_TICKS = [10**exponent for exponent in range(1, 13, 2)]  # ms; labels at each power of ten would touch


def charts(frames: Frames) -> dict[str, Chart]:
    """Draw a row per assumption, a panel per release; left of the line a harmful pair is reversed."""
    frame = frames["why"]
    releases = compared(frame)
    rows = frame[frame.release.isin(releases) & frame.slack_ms.notna()]
    rows = rows.assign(named=[_named(row) for row in each(rows)])
    names = list(dict.fromkeys(rows.named))
    places = {name: len(names) - 1 - at for at, name in enumerate(names)}
    figure, (axes,) = panels(1, len(releases), 5 + 2.8 * len(releases), 1.4 + 0.2 * len(names), sharey=True)
    for release, panel in zip(releases, axes, strict=True):
        shown = rows[rows.release == release]
        colours = [_REVERSED if row.reversed else _LUCK for row in each(shown)]
        bars(panel, [places[name] for name in shown.named], list(shown.slack_ms), colours, least=1)
        panel.xaxis.set_major_locator(FixedLocator([0, *_TICKS, *(-tick for tick in _TICKS)]))
        panel.axvline(0, color=TEXT, lw=0.8)
        panel.set_xlabel("slack of the closest harmful pair, ms")
        panel.set_title(f"DeepSpeed {plain(release)}", fontsize=9, color=TEXT)
        panel.tick_params(axis="x", labelsize=8.5)
    axes[0].set_yticks(list(places.values()), [plain(name, 80) for name in places], fontsize=8.5)
    named = {_REVERSED: "a harmful pair is reversed", _LUCK: "no harmful pair is reversed: right by luck"}
    key(figure, [Patch(color=colour, label=label) for colour, label in named.items()])
    chart = Chart(
        figure,
        "One assumption changed at a time",
        "By how much the closest harmful pair kept its order; below zero it is reversed. The scale is logarithmic on "
        "both sides of one millisecond.",
    )
    return {"why": chart}


def _named(row: Any) -> str:
    """Return the label of a change; the unchanged setting has the same label for all releases."""
    return BASE if row.assumption == BASE else f"{row.assumption}: {row.value}"
