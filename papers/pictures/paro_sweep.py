"""Draws and tabulates the gain of each way to shard by bandwidth and network cards, and where it begins to pay."""

from __future__ import annotations

import math
from pathlib import Path

import matplotlib as mpl
import numpy as np
import pandas as pd

mpl.use("Agg")  # without a display
import matplotlib.pyplot as plt
from matplotlib.colors import LogNorm
from rich.console import Console

from papers.studies.paro_sweep import PAYS, begins_to_pay
from streamrace.studies.table import Column, Table

_NOTHING = "#d9dce3"
_MOST = 20.0  # times as fast, where colours end


def draw(frame: pd.DataFrame, path: Path, *, title: str) -> Path:
    """Draw a panel for each number of cards: rows by ratio, the gain in each field; grey where it does not pay."""
    rows = frame[frame.what != frame.against]
    cards, ratios, names = sorted(set(rows.cards)), sorted(set(rows.ratio)), list(dict.fromkeys(rows.what))
    figure, panels = plt.subplots(
        1,
        len(cards),
        figsize=(1.6 + 0.5 * len(ratios) * len(cards), 1.6 + 0.28 * len(names)),
        dpi=150,
        sharey=True,
        squeeze=False,
    )
    shades = mpl.colormaps["viridis_r"].with_extremes(bad=_NOTHING)
    for axes, count in zip(panels[0], cards, strict=True):
        table = rows[rows.cards == count].pivot(index="what", columns="ratio", values="gain").loc[names, ratios]
        gains = table.to_numpy()
        drawn = np.ma.masked_less(gains, PAYS)
        axes.imshow(drawn, cmap=shades, norm=LogNorm(1.0, _MOST), aspect="auto")
        for y, x in np.ndindex(*gains.shape):
            ink = "white" if gains[y, x] > 4.0 else "black"
            axes.text(x, y, f"{gains[y, x]:.2f}", ha="center", va="center", fontsize=7, color=ink)
        axes.set_xticks(range(len(ratios)), [f"{ratio:g}" for ratio in ratios], fontsize=8)
        axes.set_yticks(range(len(names)), names, fontsize=8)
        axes.set_title(f"{count} card{'s' if count > 1 else ''} a node", fontsize=9, loc="left")
        axes.tick_params(length=0)
    figure.supxlabel("Gbit/s within a node over those of a network card", fontsize=9)
    figure.suptitle(title, fontsize=10, x=0.01, ha="left")
    figure.tight_layout()
    figure.savefig(path)
    plt.close(figure)
    return path


def show(console: Console, frame: pd.DataFrame) -> None:
    """Print from which ratio on each row pays."""
    begins = begins_to_pay(frame)
    console.print(
        f"From which ratio on (Gbit/s within a node over those of a network card) it is {PAYS:g} times as fast, by "
        "network cards of a node; strategies against ZeRO-3 (7B, 32 GPUs), rings against a flat ring (1 GB)",
        highlight=False,
    )
    least = frame.ratio.min()
    by_what = frame.groupby("what")
    rows = []
    for what, found in zip(map(str, begins.index), begins.to_numpy(), strict=True):
        cells = ["-" if math.isnan(value) else "all" if value == least else f"{value:g}" for value in found]
        mine = by_what.get_group(what)
        rows.append([what, *cells, mine.gain.max(), "" if bool(mine.fits.all()) else "does not fit"])
    cards = [Column(f"{count} card{'s' if count > 1 else ''}", right=True) for count in map(int, begins.columns)]
    table = Table("", ["", *cards, Column("most", ".2f"), ""], rows)
    console.print(table)
    console.print(
        f"all: from {least:g} on, the least that was tried; -: at none of {least:g} to {frame.ratio.max():g}; most: "
        "how many times as fast, at its best.",
        highlight=False,
    )
