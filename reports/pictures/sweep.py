"""Draws the pictures of a sweep: where the race shows, throughput against bandwidth, and the gain of hpZ."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, Rectangle
from matplotlib.ticker import LogLocator

from streamrace.frameworks.deepspeed.releases import PINNED
from streamrace.reports.charts.frame import TEXT, Chart
from streamrace.reports.pictures.figures import key, panels, plain
from streamrace.studies.declared.sweep import as_released
from streamrace.studies.study import Frames
from streamrace.studies.sweep import PAYS, STOCK, UNFIXED, ZERO3, gain, stops_paying
from streamrace.studies.table import each

_LATENT, _PARTLY, _MANIFESTED, _NONE = "#f0cf73", "#e08a3c", "#cf3a3a", "#7c83a366"
_STATES = {
    _MANIFESTED: "every harmful pair is reversed",
    _PARTLY: "some harmful pairs are reversed",
    _LATENT: "no harmful pair is reversed: right by luck",
    _NONE: "no race",
}
_HATCH: dict[str, Any] = {"hatch": "///", "edgecolor": "#00000055", "linewidth": 0}


def charts(frames: Frames) -> dict[str, Chart]:
    """Return the phase diagram and the throughput."""
    frame = frames["sweep"]
    return {"phase-diagram": phases(frame, [UNFIXED, *as_released(frame)]), "throughput": throughput(frame)}


def phases(frame: pd.DataFrame, configurations: Sequence[str]) -> Chart:
    """Draw whether the race shows, and the slack of the closest harmful pair: networks by micro-batches.

    A panel for each of ``configurations``, one below the other.
    """
    shown = frame[frame.configuration.isin(configurations)]
    batches, networks = sorted(shown.micro_batch.unique()), sorted(shown.network.unique())
    count = len(configurations)
    height = 1.1 + (1.1 + 0.55 * len(batches)) * count
    figure, rows = panels(count, 1, 1.3 + 0.74 * len(networks), height)
    colours: set[str] = set()
    for configuration, (axes,) in zip(configurations, rows, strict=True):
        colours |= _phase(axes, shown[shown.configuration == configuration], networks, batches)
        if count > 1:
            axes.set_title(plain(_titled(configuration), 60), fontsize=9, color=TEXT)
    handles = [Patch(color=colour, label=word) for colour, word in _STATES.items() if colour in colours]
    if not shown.fits.all():
        handles.append(Patch(facecolor="white", **_HATCH, label="does not fit on the GPU"))
    key(figure, handles)
    return Chart(
        figure,
        "Where the race shows without a fix",
        "Colour: whether the race shows in this timing. Numbers: the slack of the closest harmful pair (below zero: "
        "reversed), and how many of them are reversed. A race that does not show is there all the same.",
    )


def _titled(configuration: str) -> str:
    release = configuration.removeprefix("hpZ ")
    return (
        f"DeepSpeed {PINNED} without its synchronisation" if release == "none" else f"DeepSpeed {release} as released"
    )


def _phase(axes: Axes, rows: pd.DataFrame, networks: list[float], batches: list[int]) -> set[str]:
    """Draw the settings of one configuration; return the colours used."""
    colours = set()
    for row in each(rows):
        x, y = networks.index(row.network), batches.index(row.micro_batch)
        colour = _colour(int(row.harmful), int(row.harmful_manifested))
        colours.add(colour)
        axes.add_patch(Rectangle((x - 0.48, y - 0.46), 0.96, 0.92, color=colour, linewidth=0))
        if not row.fits:
            axes.add_patch(Rectangle((x - 0.48, y - 0.46), 0.96, 0.92, fill=False, **_HATCH))
        if colour != _NONE:
            text = f"{_time(row.harmful_slack_us)}\n{row.harmful_manifested:.0f} of {row.harmful:.0f}"
            ink = "white" if colour == _MANIFESTED else "black"
            axes.text(x, y, text, ha="center", va="center", fontsize=9, color=ink)
    axes.set_xticks(range(len(networks)), [f"{network:g}" for network in networks])
    axes.set_yticks(range(len(batches)), [str(batch) for batch in batches])
    axes.set(xlim=(-0.5, len(networks) - 0.5), ylim=(-0.5, len(batches) - 0.5))
    axes.set(xlabel="network between nodes, Gbit/s per node", ylabel="micro-batch, sequences per GPU")
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    return colours


def throughput(frame: pd.DataFrame) -> Chart:
    """Draw tokens per second against bandwidth for hpZ and ZeRO-3, and the ratio of the two."""
    batches = sorted(frame.micro_batch.unique())
    figure, ((left, right),) = panels(1, 2, 8.6, 4)
    shades = mpl.colormaps["viridis"](np.linspace(0.25, 0.85, len(batches)))
    gains, ends = gain(frame), stops_paying(frame)
    handles = []
    for shade, batch in zip(shades, batches, strict=True):
        for configuration, style in ((STOCK, "o-"), (ZERO3, "s--")):
            rows = frame[(frame.configuration == configuration) & (frame.micro_batch == batch)].sort_values("network")
            left.plot(rows.network, rows.tokens_per_second, style, color=shade, ms=3)
        right.plot(gains.columns, gains.loc[batch], "o-", color=shade, ms=3)
        handles.append(Line2D([], [], color=shade, label=f"micro-batch {batch:g}"))
        if ends[batch] > 0:
            right.plot([ends[batch]], [PAYS], "v", color=shade, ms=8)
    left.set_yscale("log")
    left.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    left.yaxis.set_major_formatter(lambda value, _: f"{value:,.10g}")
    left.set_ylabel("tokens per second, all GPUs")
    right.set_ylabel("throughput of hpZ over ZeRO-3")
    right.axhline(PAYS, color=TEXT, lw=0.8)
    for axes in (left, right):
        _bandwidths(axes, sorted(frame.network.unique()))
    styles = {"hpZ (stream-sync)": "-", ZERO3: "--"}
    key(figure, handles + [Line2D([], [], color=TEXT, ls=style, label=name) for name, style in styles.items()], 4)
    return Chart(
        figure,
        "Throughput against bandwidth, and what hpZ gains",
        f"Triangles: from there on hpZ (stream-sync) is less than {100 * (PAYS - 1):.0f} % faster than ZeRO-3.",
    )


def _bandwidths(axes: Axes, networks: list[float]) -> None:
    axes.set_xscale("log")
    axes.set_xticks(networks, [f"{network:g}" for network in networks])
    axes.minorticks_off()
    axes.set_xlabel("network between nodes, Gbit/s per node")
    axes.grid(alpha=0.3)


def _colour(pairs: int, manifested: int) -> str:
    if not pairs:
        return _NONE
    return _MANIFESTED if manifested == pairs else _PARTLY if manifested else _LATENT


def _time(microseconds: float) -> str:
    for unit, size in (("s", 1e6), ("ms", 1e3)):
        if abs(microseconds) >= size:
            return f"{microseconds / size:+.3g} {unit}"
    return f"{microseconds:+.3g} us"
