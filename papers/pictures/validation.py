"""Draws losses in training and on a held-out split, by step: with hpZ, without, and with its race."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.lines import Line2D

from streamrace.reports.pictures.figures import key, panels, png

_STYLES: tuple[tuple[str, Any, float], ...] = (
    ("#6096ba", "-", 5.0),
    ("#274c77", (0, (4, 3)), 1.8),
    ("#e4572e", "-", 1.8),
)
"""Colour, line, and width: a line drawn over another is thinner and broken."""


def draw(frame: pd.DataFrame, path: Path) -> None:
    """Write a PNG of :func:`study`'s frame. A cross marks where a loss becomes NaN."""
    figure, (axes,) = panels(1, 2, 10.0, 4.2, sharey=True)
    handles = []
    for (name, rows), (colour, line, width) in zip(frame.groupby("configuration", sort=False), _STYLES, strict=False):
        for axis, column in zip(axes, ("training_loss", "validation_loss"), strict=True):
            held = rows[rows[column].notna()]
            axis.plot(held.step, held[column], color=colour, linestyle=line, linewidth=width)
            evaluated = rows if column == "training_loss" else rows[rows.step.isin(_evaluated(frame))]
            lost = evaluated[evaluated[column].isna()]
            if not lost.empty and not held.empty:
                axis.plot(held.step.iloc[-1], held[column].iloc[-1], "x", color=colour, markersize=9, markeredgewidth=2)
                axis.annotate(
                    f"NaN from step {lost.step.min()}", (held.step.iloc[-1], held[column].iloc[-1]), color=colour,
                    xytext=(8, -4), textcoords="offset points", fontsize=9,
                )  # fmt: skip
        handles.append(Line2D([], [], color=colour, linestyle=line, linewidth=width, label=str(name)))
    for axis, title in zip(axes, ("training", "held out (MMLU's val split)"), strict=True):
        axis.set_title(title, fontsize=10, loc="left")
        axis.set_xlabel("optimizer step")
    axes[0].set_ylabel("loss, mean over the ranks")
    key(figure, handles, columns=3)
    png(figure, path)


def _evaluated(frame: pd.DataFrame) -> set[int]:
    return set(frame[frame.validation_loss.notna()].step)
