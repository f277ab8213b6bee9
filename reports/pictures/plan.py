"""Draws a plan: for each way to shard the parts of a step's time, and the memory of a GPU at its peak."""

from __future__ import annotations

from collections.abc import Iterable

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.patches import Patch

from streamrace.reports.charts.frame import BAD, TEXT, Chart
from streamrace.reports.pictures.figures import key, panels, plain
from streamrace.studies.predicted_steps import PARTS
from streamrace.studies.study import Frames

_TIME = dict(
    zip(
        PARTS,
        (
            ("computing", "#274c77"),
            ("exposed communication within nodes", "#6096ba"),
            ("exposed communication between nodes", "#e4572e"),
            ("copies and other streams", "#a9c3d9"),
            ("nothing: the GPU waits for the host", "#d5d9de"),
        ),
        strict=True,
    )
)
_MEMORY = {"states_gib": ("model states", "#5b7f5b"), "rest_gib": ("activations, gathered, temporary", "#b8ccb0")}
_HEIGHT = 0.62


def charts(frames: Frames) -> dict[str, Chart]:
    """Draw two bars for each way that ran, the best at the top."""
    frame = frames["plan"]
    frame = frame[frame.reason == ""]
    return {} if frame.empty else {"plan": drawn(frame, "Time and memory by strategy", frame.strategy)}


def drawn(frame: pd.DataFrame, title: str, names: Iterable[str]) -> Chart:
    """Draw two bars for each row of ``frame``, the first at the top. ``gpu_gib``: NaN where it is unknown."""
    frame = frame.assign(name=list(names), rest_gib=frame.peak_gib - frame.states_gib).iloc[::-1]
    figure, ((left, right),) = panels(1, 2, 11.0, 1.5 + 0.46 * len(frame), sharey=True, width_ratios=(3, 2))
    places = range(len(frame))
    for axes, parts, total, form in (
        (left, _TIME, frame.step_s, "{:.3g} s"),
        (right, _MEMORY, frame.peak_gib, "{:.1f}"),
    ):
        base = frame.step_s * 0.0
        for name, (_, colour) in parts.items():
            axes.barh(places, frame[name], _HEIGHT, left=base, color=colour, linewidth=0, zorder=2)
            base = base + frame[name]
        for place, value in zip(places, total, strict=True):
            axes.annotate(
                form.format(value), (value, place), (4, 0), textcoords="offset points", va="center", fontsize=9,
                color=TEXT,
            )  # fmt: skip
        _framed(axes, 1.14 * float(total.max()))
    left.set_yticks(places, [plain(name, 30) for name in frame["name"]])
    left.set_xlabel("seconds of an optimizer step")
    right.set_xlabel("GiB of each GPU, at the peak")
    capacity = float(frame.gpu_gib.iloc[0])
    text = "Left: where a step's time goes. Right: torch's peak of memory"
    if capacity < 4 * frame.peak_gib.max():
        text += f"; dashed: what a GPU has, {capacity:g} GiB"
        right.axvline(capacity, color=BAD, linewidth=1.2, linestyle=(0, (5, 4)), zorder=3)
        right.set_xlim(0, 1.14 * max(capacity, float(frame.peak_gib.max())))
    used = [pair for name, pair in {**_TIME, **_MEMORY}.items() if (frame[name] > 0).any()]
    key(figure, [Patch(color=colour, label=label) for label, colour in used], 3)
    return Chart(figure, title, f"{text}.")


def _framed(axes: Axes, end: float) -> None:
    axes.set_xlim(0, end)
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="x", alpha=0.25)
    axes.spines[["top", "right", "left"]].set_visible(False)
