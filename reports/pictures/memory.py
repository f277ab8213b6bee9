"""Draws memory at its peak by kind, for each model: without hpZ, with hpZ, and with hpZ and quantization."""

from __future__ import annotations

from pathlib import Path

import matplotlib as mpl
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from streamrace.studies.memory import CARDS, GIB, GROUP, KINDS, configuration

# Kinds that live through the whole step are dark and lowest, the secondary copy stands out, temporary kinds are pale.
_PARTS = (
    ("parameters and gradients", ("primary", "gradient"), "#274c77"),
    ("optimizer state (fp32)", ("master", "optimizer"), "#6096ba"),
    ("bucket of gradients", ("bucket",), "#a9c3d9"),
    ("gathered, activations, temporary", ("gathered", "activations", "temporary", "buffer", "rounding"), "#d5d9de"),
    ("secondary copy (hpZ)", ("secondary",), "#e4572e"),
)
_WIDTH = 0.27
_TEXT, _RULE = "#2b2f36", "#b5bac2"


def draw(frame: pd.DataFrame, path: Path, *, group: int = GROUP, title: str = "") -> None:
    """Draw :func:`study`'s frame as PNG: per model a bar for no hpZ, for hpZ ``group``, and for that with qwZ.

    A bar is missing if its row is.
    """
    assert {kind for _, kinds, _ in _PARTS for kind in kinds} == set(KINDS)
    models = list(dict.fromkeys(frame.model))
    bars = [(1, False), (group, False), (group, True)]
    drawn = {(row["model"], row["group"], row["qwz"]): row for row in frame.to_dict("records")}
    highest = max(drawn[key]["peak"] for key in drawn if key[1:] in bars) / GIB
    with mpl.rc_context({"font.family": "sans-serif", "font.size": 10, "text.color": _TEXT}):
        figure = Figure(figsize=(max(6.0, 1.9 * len(models) + 1.2), 6.0), dpi=160, layout="constrained")
        axes = figure.subplots()
        for at, model in enumerate(models):
            for place, (size, qwz) in enumerate(bars):
                row = drawn.get((model, size, qwz))
                if row is None:
                    continue
                x, base = at + (place - 1) * (_WIDTH + 0.03), 0.0
                for _, kinds, colour in _PARTS:
                    height = sum(row[f"peak_{kind}"] for kind in kinds) / GIB
                    axes.bar(x, height, _WIDTH, bottom=base, color=colour, linewidth=0, zorder=2)
                    base += height
                axes.text(
                    x, base + highest * 0.012, f"{base:.1f}",
                    ha="center", va="bottom", fontsize=8, zorder=4,
                    bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.6},
                )  # fmt: skip
                axes.text(
                    x, -highest * 0.012, configuration(size, qwz).replace(" + ", "\n+ "),
                    ha="center", va="top", fontsize=7, color="#6b7280",
                )  # fmt: skip
        top = max([highest * 1.08, *(card * 1.04 for card in CARDS if card < 2.2 * highest)])
        for card in CARDS:
            if card < top:
                axes.axhline(card, color=_TEXT, linewidth=0.9, linestyle=(0, (5, 4)), zorder=3)
                name = f"a{'n' if str(card).startswith('8') else ''} {card} GB card"
                axes.text(-0.5, card, name, ha="left", va="bottom", fontsize=9, style="italic")
        axes.set_ylim(0, top)
        axes.set_xlim(-0.55, len(models) - 0.45)
        axes.set_xticks(
            range(len(models)),
            [f"{model}\n{frame[frame.model == model].parameters.iloc[0] / 1e9:.1f} billion" for model in models],
        )
        axes.tick_params(axis="x", length=0, pad=28)
        axes.tick_params(axis="y", length=0, labelcolor=_TEXT)
        axes.set_ylabel("GiB on each GPU, at the peak")
        axes.grid(axis="y", color=_RULE, linewidth=0.5, alpha=0.6, zorder=0)
        for side in ("top", "right", "left"):
            axes.spines[side].set_visible(False)
        axes.spines["bottom"].set_color(_RULE)
        figure.legend(
            handles=[Patch(color=colour, label=label) for label, _, colour in _PARTS],
            loc="outside lower center", ncols=len(_PARTS), frameon=False, fontsize=9,
        )  # fmt: skip
        figure.suptitle(
            title or "Memory on each GPU, with and without the secondary copy", x=0.02, ha="left", fontsize=13
        )
        figure.savefig(path)
