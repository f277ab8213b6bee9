"""Draws the throughput that interruptions cost, by checkpoint interval: closed form, and event by event."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.lines import Line2D

from papers.studies.failure import CASES, RATES, outages, smallest_group
from streamrace.reports.pictures.figures import key, panels, png
from streamrace.scenarios.sharding.schemes import scheme

_COLOURS = ("#274c77", "#e4572e", "#6096ba", "#8d99ae")
_NAMES = {"GGG": "ZeRO-3, and hpZ: from storage", "III": "state in each group (III): one host from a peer"}


def draw(events: pd.DataFrame, path: Path) -> None:
    """Write a PNG: a panel for each model of :func:`papers.studies.failure.events`' frame, a line for each strategy."""
    models = list(dict.fromkeys(events.model))
    strategies = list(dict.fromkeys(events.strategy))
    figure, (axes,) = panels(1, len(models), 4.6 * len(models), 4.2)
    intervals = np.geomspace(30, 12 * 3600, 200)
    for axis, model in zip(axes, models, strict=True):
        case = next(one for one in CASES if one.model == model)
        for name, colour in zip(strategies, _COLOURS, strict=False):
            rows = events[(events.model == model) & (events.strategy == name)]
            if rows.empty:
                continue
            one = scheme(name)
            group = smallest_group(one, case)
            assert group is not None
            found = outages(case, one, group, RATES[0])
            axis.plot(intervals / 60, [100 * found.lost(float(each)) for each in intervals], color=colour)
            axis.plot(rows.interval_s / 60, 100 * rows.played, "o", color=colour, markersize=4)
            axis.axvline(found.best / 60, color=colour, linewidth=0.8, linestyle=":")
        axis.set_xscale("log")
        axis.set_yscale("log")
        axis.set_title(f"{model}, {case.ranks:,} GPUs", loc="left", fontsize=10)
        axis.set_xlabel("minutes between checkpoints")
        axis.tick_params(which="minor", labelleft=False)
    axes[0].set_ylabel("throughput lost, %")
    handles = [
        Line2D([], [], color=colour, label=_NAMES.get(name, name))
        for name, colour in zip(strategies, _COLOURS, strict=False)
    ]
    handles += [
        Line2D([], [], color="#6b7280", marker="o", linewidth=0, label="event by event"),
        Line2D([], [], color="#6b7280", linestyle=":", label="best interval"),
    ]
    key(figure, handles, columns=4)
    png(figure, path)
