"""Draws hpZ's speed-up at the largest micro-batch that fits, by number of GPUs and network."""

from __future__ import annotations

from pathlib import Path

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.colors import TwoSlopeNorm
from matplotlib.patches import Patch

from streamrace.reports.charts.frame import TEXT
from streamrace.reports.pictures.figures import key, panels, png

_NOT, _NEITHER = "#3d405b", "#d9dce3"
_LEAST, _MOST = 0.5, 1.5  # where colours end


def draw(gained: pd.DataFrame, path: Path) -> None:
    """Write a PNG of :func:`gains`' frame: a row of panels for each card, a panel for each model."""
    models, cards = list(dict.fromkeys(gained.model)), sorted(set(gained.card))
    networks, ranks = sorted(set(gained.network)), sorted(set(gained.ranks))
    figure, axes = panels(len(cards), len(models), 4.4 * len(models), 0.9 + (1.2 + 0.32 * len(networks)) * len(cards))
    shades, norm = mpl.colormaps["RdBu"], TwoSlopeNorm(1.0, _LEAST, _MOST)
    for card, line in zip(cards, axes, strict=True):
        for model, axis in zip(models, line, strict=True):
            rows = gained[(gained.model == model) & (gained.card == card)]
            batches = rows.drop_duplicates("ranks").set_index("ranks")
            table = rows.pivot(index="network", columns="ranks", values="gain").reindex(networks, columns=ranks)
            for y, x in np.ndindex(*table.shape):
                gain = table.iloc[y, x]
                colour = _NEITHER if np.isnan(gain) else _NOT if gain == 0 else shades(norm(gain))
                axis.add_patch(mpl.patches.Rectangle((x - 0.5, y - 0.5), 1, 1, facecolor=colour, edgecolor="white"))
                if gain > 0:
                    ink = "white" if abs(gain - 1) > 0.35 else "black"
                    axis.text(x, y, f"{gain:.2f}", ha="center", va="center", fontsize=8, color=ink)
            axis.set_xlim(-0.5, len(ranks) - 0.5)
            axis.set_ylim(-0.5, len(networks) - 0.5)
            labels = [f"{one}\n{batches.zero3_batch.get(one, 0)} / {batches.hpz_batch.get(one, 0)}" for one in ranks]
            axis.set_xticks(range(len(ranks)), labels, fontsize=8)
            axis.set_yticks(range(len(networks)), [f"{one:g}" for one in networks], fontsize=8)
            axis.tick_params(length=0)
            axis.set_title(f"{model}, {card} GiB", loc="left", fontsize=10)
    for axis in axes[-1]:
        axis.set_xlabel("GPUs; largest micro-batch of ZeRO-3 / hpZ")
    for line in axes:
        line[0].set_ylabel("Gbit/s of a node")
    key(
        figure,
        [
            Patch(color=shades(norm(_MOST)), label="hpZ is faster"),
            Patch(color=shades(norm(_LEAST)), label="hpZ's memory costs more than it gains"),
            Patch(color=_NOT, label="only ZeRO-3 fits"),
            Patch(color=_NEITHER, label="neither fits"),
        ],
        columns=4,
    )
    figure.axes[0].tick_params(labelcolor=TEXT)
    png(figure, path)
