"""Draws the cost of each placement of the synchronisation (:mod:`streamrace.studies.placements`)."""

from __future__ import annotations

from matplotlib.patches import Patch

from streamrace.reports.charts.frame import TEXT, Chart
from streamrace.reports.pictures.figures import bars, key, panels, plain
from streamrace.studies.placements import fastest
from streamrace.studies.study import Frames

_FREE, _RACY = "#2f7fbf", "#cf5a3a"
_LEAST = 0.01  # ms and s; below, the scale is linear


def charts(frames: Frames) -> dict[str, Chart]:
    """Draw a row of panels per model and network: by how much a step is longer, and how long the host waits at the fix.

    Seconds of a whole step hardly differ, so the first panel has milliseconds above the fastest race-free fix.
    """
    if "placements" not in frames:
        return {}
    frame = frames["placements"]
    groups = list(frame.groupby(["model", "gbits"], sort=False))
    figure, axes = panels(len(groups), 2, 11, 0.6 + 2.6 * len(groups), sharex="col", sharey="row")
    for (left, right), (job, rows) in zip(axes, groups, strict=True):
        model, gbits = job
        best = fastest(rows)
        colours = [_FREE if free else _RACY for free in rows.race_free]
        places = range(len(rows))
        for panel, values, text, title in (
            (left, ((rows.step_s - best) * 1e3).round(3), "{:+,} ms",
             f"{plain(str(model))}, {gbits:g} Gbit/s: {best:.3f} s a step, and ms more"),
            (right, rows.waited_s, "{:,} s", "seconds a step that the host waits at the fix"),
        ):  # fmt: skip
            panel.set_title(title, fontsize=10, loc="left", color=TEXT)
            bars(
                panel,
                places,
                list(values),
                colours,
                least=_LEAST,
                labels=[text.format(_short(value)) for value in values],
            )
            panel.tick_params(axis="x", labelbottom=True)
            panel.spines[["top", "right"]].set_visible(False)
        left.set_yticks(places, [plain(fix) for fix in rows.fix], fontsize=9)
        left.set_ylim(len(rows) - 0.4, -0.6)
        for label, colour in zip(left.get_yticklabels(), colours, strict=True):
            label.set_color(colour)  # a bar of length 0 shows no colour
    extra = frame.groupby(["model", "gbits"]).step_s.agg(lambda steps: steps.max() - steps.min()) * 1e3
    axes[0][0].set_xlim(0, 8 * max(extra.max(), _LEAST))
    axes[0][1].set_xlim(0, 8 * max(frame.waited_s.max(), _LEAST))
    key(figure, [Patch(color=_FREE, label="race-free"), Patch(color=_RACY, label="a race is found")])
    chart = Chart(
        figure,
        "What each place costs in time, and where the host is blocked",
        "Virtual time of a step beyond the fastest race-free one's, for the same model and network, on a logarithmic "
        "axis. A host that waits cannot issue work ahead; an event makes a stream wait instead.",
    )
    return {"placements": chart}


def _short(value: float) -> float | int:
    """Round to three significant digits."""
    return round(value) if abs(value) >= 100 or not value else float(f"{value:.3g}")
