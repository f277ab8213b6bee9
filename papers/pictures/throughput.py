"""Draws predicted against measured step times, by source."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
from matplotlib.lines import Line2D

from papers.studies.throughput_errors import OFF
from streamrace.reports.pictures.figures import key, panels, png

_COLOURS = ("#274c77", "#e4572e", "#2a9d8f", "#e9a820", "#8e5ea2", "#6096ba", "#7a7a7a", "#c2185b", "#5b8c2a")
_MARKERS = "osD^vP*Xh"


def draw(frame: pd.DataFrame, path: Path) -> None:
    """Write a PNG of :func:`papers.studies.throughput.study`'s frame. Dashed: a quarter more and less."""
    figure, ((axes,),) = panels(1, 1, 7.0, 6.6)
    ends = [frame.theirs_s.min() * 0.7, frame.theirs_s.max() * 1.4]
    for factor, style in ((1.0, "-"), (1 - OFF, "--"), (1 + OFF, "--")):
        axes.plot(ends, [factor * end for end in ends], style, color="#808080", linewidth=0.9)
    handles = []
    for (source, rows), colour, marker in zip(frame.groupby("source_id", sort=False), _COLOURS, _MARKERS, strict=False):
        axes.plot(rows.theirs_s, rows.ours_s, marker, color=colour, markersize=5, alpha=0.75)
        handles.append(Line2D([], [], color=colour, marker=marker, linestyle="", label=f"{source} ({len(rows)})"))
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("measured, s a step")
    axes.set_ylabel("predicted from facts alone, s a step")
    axes.grid(alpha=0.25, which="both")
    key(figure, handles, columns=3)
    png(figure, path)
