"""Pictures of a sweep: where the race shows, throughput against bandwidth, and what hpZ gains."""

from __future__ import annotations

from pathlib import Path

import matplotlib as mpl
import numpy as np
import pandas as pd

mpl.use("Agg")  # no display is needed, nor looked for
import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap, to_rgba
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle

from studies.sweep import PAYS, ZERO3, gain, stops_paying

_HIDDEN, _PARTLY, _SHOWN, _NONE = "#4c9f70", "#e3b23c", "#cf3a3a", "#d9dce3"
_WORDS = {
    _SHOWN: "all unordered pairs are reversed",
    _PARTLY: "some are",
    _HIDDEN: "none: training comes out right by luck",
    _NONE: "no race",
}


def phase_diagram(frame: pd.DataFrame, configuration: str, title: str, path: Path) -> Path:
    """Does the race of ``configuration`` show, and how close did the closest pair come: networks by micro-batches."""
    rows = frame[frame.configuration == configuration]
    table = rows.set_index(["micro_batch", "network"]).sort_index()
    batches, networks = sorted(rows.micro_batch.unique()), sorted(rows.network.unique())
    colours = [_HIDDEN, _PARTLY, _SHOWN, _NONE]
    cells = np.zeros((len(batches), len(networks)))
    figure, axes = plt.subplots(figsize=(1.5 + 0.95 * len(networks), 2.0 + 0.55 * len(batches)), dpi=150)
    for y, batch in enumerate(batches):
        for x, network in enumerate(networks):
            cell = table.loc[(batch, network)]
            colour = _colour(int(cell.pairs), int(cell.shown))
            cells[y, x] = colours.index(colour)
            text = "" if colour == _NONE else f"{_time(cell.margin_us)}\n{cell.shown} of {cell.pairs}"
            ink = "black" if colour in (_PARTLY, _NONE) else "white"
            axes.text(x, y, text, ha="center", va="center", fontsize=7, color=ink)
            if not cell.fits:
                axes.add_patch(
                    Rectangle((x - 0.5, y - 0.5), 1, 1, fill=False, hatch="///", edgecolor="#00000055", lw=0)
                )
    shades = ListedColormap([to_rgba(colour) for colour in colours])
    axes.imshow(cells, cmap=shades, vmin=-0.5, vmax=3.5, aspect="auto", origin="lower")
    axes.set_xticks(range(len(networks)), [f"{network:g}" for network in networks])
    axes.set_yticks(range(len(batches)), [str(batch) for batch in batches])
    axes.set_xlabel("network between nodes, Gbit/s per node")
    axes.set_ylabel("micro-batch, sequences per GPU")
    axes.set_title(title, fontsize=10, loc="left")
    handles = [Patch(color=colour, label=word) for colour, word in _WORDS.items() if colours.index(colour) in cells]
    if not rows.fits.all():
        handles.append(Patch(facecolor="white", hatch="///", edgecolor="#00000055", label="does not fit on the GPU"))
    figure.legend(handles=handles, loc="lower center", ncol=2, fontsize=8, frameon=False)
    figure.tight_layout(rect=(0, 0.06 + 0.03 * (len(handles) > 2), 1, 1))
    return _save(figure, path)


def throughput(frame: pd.DataFrame, title: str, path: Path) -> Path:
    """Tokens per second against bandwidth, hpZ beside ZeRO-3; and how many times as fast hpZ is."""
    batches = sorted(frame.micro_batch.unique())
    figure, (left, right) = plt.subplots(1, 2, figsize=(12, 4.6), dpi=150)
    shades = plt.get_cmap("viridis")(np.linspace(0.05, 0.85, len(batches)))
    gains, ends = gain(frame), stops_paying(frame)
    for shade, batch in zip(shades, batches, strict=True):
        for configuration, style in (("hpZ stream-sync", "-"), (ZERO3, "--")):
            rows = frame[(frame.configuration == configuration) & (frame.micro_batch == batch)].sort_values("network")
            left.plot(rows.network, rows.tokens_per_second, style, color=shade, marker="o", ms=3)
        right.plot(gains.columns, gains.loc[batch], color=shade, marker="o", ms=3, label=f"micro-batch {batch}")
        if np.isfinite(ends[batch]):
            right.plot([ends[batch]], [PAYS], marker="v", color=shade, ms=8)
    left.plot([], [], "k-", label="hpZ (stream-sync)")
    left.plot([], [], "k--", label="ZeRO-3 without hpZ")
    left.set_yscale("log")
    left.set_ylabel("tokens per second, all GPUs")
    right.set_ylabel("throughput of hpZ over ZeRO-3")
    right.axhline(PAYS, color="#888888", lw=0.8)
    right.text(
        0.99,
        PAYS,
        f"pays less than {100 * (PAYS - 1):.0f} %",
        transform=right.get_yaxis_transform(),
        ha="right",
        va="bottom",
        fontsize=8,
    )
    for axes in (left, right):
        _bandwidths(axes, sorted(frame.network.unique()))
        axes.grid(alpha=0.3)
        axes.legend(fontsize=8)
    figure.suptitle(title, fontsize=10, x=0.01, y=0.99, ha="left")
    figure.tight_layout()
    return _save(figure, path)


def _bandwidths(axes: Axes, networks: list[float]) -> None:
    axes.set_xscale("log")
    axes.set_xticks(networks, [f"{network:g}" for network in networks])
    axes.minorticks_off()
    axes.set_xlabel("network between nodes, Gbit/s per node")


def _colour(pairs: int, shown: int) -> str:
    if not pairs:
        return _NONE
    return _SHOWN if shown == pairs else _PARTLY if shown else _HIDDEN


def _time(microseconds: float) -> str:
    for unit, size in (("s", 1e6), ("ms", 1e3)):
        if abs(microseconds) >= size:
            return f"{microseconds / size:+.3g} {unit}"
    return f"{microseconds:+.3g} us"


def _save(figure: Figure, path: Path) -> Path:
    figure.savefig(path)
    plt.close(figure)
    return path
