"""Draws memory against communication: all ways to shard, their Pareto front, and the lower bound."""

from __future__ import annotations

import math
from pathlib import Path

import pandas as pd
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from papers.studies.pareto import TradeCase, bound
from streamrace.reports.charts.frame import TEXT
from streamrace.reports.pictures.figures import key, panels, png

_COSTS = (
    ("sent", 1e9, "GB that a GPU sends in a step"),
    ("crossing", 1e9, "GB that leave a node in a step"),
    ("communication_s", 1.0, "seconds of communication in a step"),
)
_NAMED = ("hpZ", "III", "NNN")  # labelled although dominated
_FRONT, _OTHER, _BOUND = "#e4572e", "#8d99ae", "#274c77"


def draw(frame: pd.DataFrame, path: Path, cases: list[TradeCase]) -> None:
    """Write a PNG of :func:`study`'s frame: a row of panels for each of ``cases``, a panel for each cost."""
    figure, axes = panels(len(cases), len(_COSTS), 13.5, 4.0 * len(cases) + 0.5)
    for case, line in zip(cases, axes, strict=True):
        rows = frame[(frame.model == case.model) & (frame.trained == case.trained) & (frame.ranks == case.ranks)]
        limit = bound(case)
        for axis, (name, unit, label) in zip(line, _COSTS, strict=True):
            axis.set_xscale("log")
            axis.set_yscale("log")
            least = limit[f"least_{name}"] / unit
            low = min(least.min(), (rows[name] / unit).min()) / 3
            axis.fill_between(limit["memory"] / 1e9, low, least, color=_BOUND, alpha=0.14, linewidth=0)
            axis.plot(limit["memory"] / 1e9, least, color=_BOUND, linewidth=1.3)
            axis.set_ylim(low, (rows[name] / unit).max() * 3)
            axis.tick_params(which="minor", labelbottom=False, labelleft=False)
            best = rows[rows[f"front_{name}"]].sort_values("memory")
            axis.step(best["memory"] / 1e9, best[name] / unit, where="post", color=_FRONT, linewidth=1.0)
            places: dict[tuple[str, str], list[str]] = {}  # labels, joined where points coincide
            for row in rows.sort_values("memory").to_dict("records"):
                on = bool(row[f"front_{name}"])
                x, y = row["memory"] / 1e9, row[name] / unit
                axis.plot(x, y, "o", color=_FRONT if on else _OTHER, markersize=5 if on else 4, zorder=3 + on)
                if on or row["strategy"] in _NAMED:
                    place = (f"{math.log10(x):.1f}", f"{math.log10(y):.1f}")
                    places.setdefault(place, []).append(row["strategy"])
            for number, ((at, height), names) in enumerate(places.items()):
                below = number % 2  # alternate, to keep neighbours apart
                axis.annotate(
                    ", ".join(names), (10 ** float(at), 10 ** float(height)), xytext=(0, -14 if below else 7),
                    textcoords="offset points", fontsize=8, color=TEXT, ha="center", zorder=6,
                )  # fmt: skip
            axis.set_xlabel("GB of model states on a GPU")
            axis.set_ylabel(label)
            axis.margins(x=0.1)
        line[0].set_title(f"{case.model}, {case.trained} trained, {case.ranks} GPUs", loc="left", fontsize=10)
    key(
        figure,
        [
            Line2D([], [], color=_FRONT, marker="o", label="on the Pareto front"),
            Line2D([], [], color=_OTHER, marker="o", linewidth=0, label="dominated"),
            Line2D([], [], color=_BOUND, label="lower bound"),
            Patch(color=_BOUND, alpha=0.14, label="no strategy of the family can be here"),
        ],
        columns=4,
    )
    png(figure, path)
