"""Draws the cost of each placement of the synchronisation (:mod:`streamrace.studies.placements`)."""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.patches import Patch

from streamrace.reports.charts.frame import TEXT, Chart
from streamrace.reports.pictures.figures import key, panels, plain

_FREE, _RACY = "#2f7fbf", "#cf5a3a"
_LEAST_MS, _LEAST_S = 0.01, 0.01


def draw(frame: pd.DataFrame) -> Chart:
    """Draw a row of panels per model and network: by how much a step is longer, and how long the host waits at the fix.

    Seconds of a whole step hardly differ, so the first panel has milliseconds above the fastest race-free fix.
    """
    groups = list(frame.groupby(["model", "gbits"], sort=False))
    figure, axes = panels(len(groups), 2, 11, 0.6 + 2.6 * len(groups), sharex="col", sharey="row")
    for (left, right), (job, rows) in zip(axes, groups, strict=True):
        model, gbits = job
        best = fastest(rows)
        title = f"{plain(str(model))}, {gbits:g} Gbit/s: {best:.3f} s a step, and ms more"
        left.set_title(title, fontsize=10, loc="left", color=TEXT)
        right.set_title("seconds a step that the host waits at the fix", fontsize=10, loc="left", color=TEXT)
        _bars(left, rows, ((rows.step_s - best) * 1e3).round(3), "{:+,} ms", _LEAST_MS)
        _bars(right, rows, rows.waited_s, "{:,} s", _LEAST_S)
    extra = frame.groupby(["model", "gbits"]).step_s.agg(lambda steps: steps.max() - steps.min()) * 1e3
    axes[0][0].set_xlim(0, 8 * max(extra.max(), _LEAST_MS))
    axes[0][1].set_xlim(0, 8 * max(frame.waited_s.max(), _LEAST_S))
    key(figure, [Patch(color=_FREE, label="race-free"), Patch(color=_RACY, label="a race is found")])
    return Chart(
        figure,
        "What each place costs in time, and where the host is blocked",
        "Virtual time of a step beyond the fastest race-free one's, for the same model and network, on a logarithmic "
        "axis. A host that waits cannot issue work ahead; an event makes a stream wait instead.",
    )


def fastest(rows: pd.DataFrame) -> float:
    """Return the seconds per step of a job's fastest race-free fix; of the fastest if all race."""
    return float(rows[rows.race_free].step_s.min() if rows.race_free.any() else rows.step_s.min())


def _bars(axes: Axes, rows: pd.DataFrame, values: pd.Series[float], text: str, least: float) -> None:
    """Draw the bars on a symmetric logarithmic axis. ``least``: below this the scale is linear."""
    colours = [_FREE if free else _RACY for free in rows.race_free]
    places = list(range(len(rows)))
    bars = axes.barh(places, values.tolist(), color=colours, height=0.7)
    axes.bar_label(bars, [text.format(_short(value)) for value in values], padding=3, fontsize=8, color=TEXT)
    axes.set_yticks(places, [plain(fix) for fix in rows.fix], fontsize=9)
    for label, colour in zip(axes.get_yticklabels(), colours, strict=False):
        label.set_color(colour)  # a bar of length 0 shows no colour; the right panels share the labels
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.set_xscale("symlog", linthresh=least)
    axes.tick_params(axis="x", labelbottom=True)
    axes.grid(axis="x", alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)


def _short(value: float) -> float | int:
    """Round to three significant digits."""
    return round(value) if abs(value) >= 100 or not value else float(f"{value:.3g}")
