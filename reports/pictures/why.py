"""Draws the changed assumptions: the slack of the closest harmful pair, with a panel per release."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd
from matplotlib.patches import Patch
from matplotlib.ticker import FixedLocator

from streamrace.reports.charts.frame import TEXT, Chart
from streamrace.reports.data.frames import each
from streamrace.reports.pictures.figures import key, panels, plain
from streamrace.studies.why import BASE

_REVERSED, _LUCK = "#cf3a3a", "#4c9f70"
_TICKS = [10**exponent for exponent in range(1, 13, 2)]  # ms; labels at each power of ten would touch


def slacks(frame: pd.DataFrame, releases: Sequence[str]) -> Chart:
    """Draw a row per assumption, a panel for each of ``releases``; left of the line a harmful pair is reversed."""
    rows = frame[frame.release.isin(list(releases)) & frame.slack_ms.notna()]
    rows = rows.assign(named=[_named(one) for one in each(rows)])
    names = list(dict.fromkeys(rows.named))
    places = {name: len(names) - 1 - at for at, name in enumerate(names)}
    figure, (axes,) = panels(1, len(releases), 4.2 + 2.6 * len(releases), 1.4 + 0.18 * len(names), sharey=True)
    for release, one in zip(releases, axes, strict=True):
        for row in each(rows[rows.release == release]):
            colour = _REVERSED if row.reversed else _LUCK
            place = places[row.named]
            one.plot([0, row.slack_ms], [place, place], "-", color=colour, lw=1.5)
            one.plot([row.slack_ms], [place], "o", color=colour, ms=4)
        one.set_xscale("symlog", linthresh=1)
        one.xaxis.set_major_locator(FixedLocator([0, *_TICKS, *(-tick for tick in _TICKS)]))
        one.axvline(0, color=TEXT, lw=0.8)
        one.grid(axis="x", alpha=0.3)
        one.set_xlabel("slack of the closest harmful pair, ms")
        one.set_title(f"DeepSpeed {plain(release)}", fontsize=9, color=TEXT)
        one.tick_params(axis="x", labelsize=7)
    axes[0].set_yticks(list(places.values()), [plain(name, 72) for name in places], fontsize=7)
    key(figure, [Patch(color=_REVERSED, label="a harmful pair is reversed"), Patch(color=_LUCK, label="none is")])
    return Chart(
        figure,
        "One assumption changed at a time",
        "By how much the closest harmful pair kept its order; below zero it is reversed. The scale is logarithmic on "
        "both sides of one millisecond.",
    )


def _named(row: Any) -> str:
    """Return the label of a change; the unchanged setting has the same label for all releases."""
    return BASE if row.assumption == BASE else f"{row.assumption}: {row.value}"
