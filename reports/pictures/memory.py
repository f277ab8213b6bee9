"""Draws memory at its peak by kind, for each model: without hpZ, with hpZ, and with hpZ and quantization."""

from __future__ import annotations

from typing import Any

from matplotlib.patches import Patch

from streamrace.reports.charts.frame import TEXT, Chart
from streamrace.reports.pictures.figures import key, panels, plain
from streamrace.studies.memory import CARDS, GIB, GROUP, configuration
from streamrace.studies.study import Frames

# Kinds that live through the whole step are dark and lowest, the secondary copy stands out, temporary kinds are pale.
PARTS = (
    ("parameters and gradients", ("primary", "gradient"), "#274c77"),
    ("optimizer state (fp32)", ("master", "optimizer"), "#6096ba"),
    ("bucket of gradients", ("bucket",), "#a9c3d9"),
    ("gathered, activations, temporary", ("gathered", "activations", "temporary", "buffer", "rounding"), "#d5d9de"),
    ("secondary copy (hpZ)", ("secondary",), "#e4572e"),
)
_WIDTH = 0.27


def charts(frames: Frames) -> dict[str, Chart]:
    """Draw per model a bar for no hpZ, for the usual group, and for that with qwZ. A bar is missing if its row is."""
    if "memory" not in frames:
        return {}
    frame = frames["memory"]
    models = list(dict.fromkeys(frame.model))
    group = GROUP if (frame.group == GROUP).any() else int(frame.group.max())
    bars = [(1, False), (group, False), (group, True)]
    rows = {(row["model"], row["group"], row["qwz"]): row for row in frame.to_dict("records")}
    highest = max(row["peak"] for key, row in rows.items() if key[1:] in bars) / GIB
    top = max([highest * 1.08, *(card * 1.04 for card in CARDS if card < 2.2 * highest)])
    figure, ((axes,),) = panels(1, 1, max(6.0, 1.9 * len(models) + 1.2), 6.0)
    for at, model in enumerate(models):
        for place, bar in enumerate(bars):
            if (row := rows.get((model, *bar))) is None:
                continue
            x, base = at + (place - 1) * (_WIDTH + 0.03), 0.0
            for _, kinds, colour in PARTS:
                height = sum(row[f"peak_{kind}"] for kind in kinds) / GIB
                axes.bar(x, height, _WIDTH, bottom=base, color=colour, linewidth=0, zorder=2)
                base += height
            centred: Any = {"ha": "center", "color": TEXT}
            above = next((card for card in CARDS if base < card < base + 0.04 * top), base)  # not on a card's line
            axes.text(x, above + highest * 0.012, f"{base:.1f}", va="bottom", fontsize=9, **centred)
            name = configuration(*bar).replace(" + ", "\n+ ")
            axes.text(x, -highest * 0.012, name, va="top", fontsize=8.5, **centred)
    for card in (card for card in CARDS if card < top):
        axes.axhline(card, color=TEXT, linewidth=0.9, linestyle=(0, (5, 4)), zorder=3)
        name = f"a{'n' if str(card).startswith('8') else ''} {card} GiB card"
        axes.text(-0.5, card, name, ha="left", va="bottom", fontsize=9, style="italic", color=TEXT)
    axes.set(ylim=(0, top), xlim=(-0.55, len(models) - 0.45), ylabel="GiB on each GPU, at the peak")
    sizes = frame.groupby("model").parameters.first() / 1e9
    axes.set_xticks(range(len(models)), [f"{plain(model, 24)}\n{sizes[model]:.1f} billion" for model in models])
    axes.tick_params(axis="x", length=0, pad=28)
    axes.grid(axis="y", alpha=0.3)
    axes.spines[["top", "right", "left"]].set_visible(False)
    key(figure, [Patch(color=colour, label=label) for label, _, colour in PARTS], 3)
    chart = Chart(
        figure,
        "Memory on each GPU at its peak",
        "By kind, for each model: without hpZ, with it, and with quantized weights. Dashed: what a GPU has.",
    )
    return {"memory": chart}
