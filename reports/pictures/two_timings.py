"""Draws a race in two timings, the run's own and the other: lanes by stream, and the missing edge."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import FancyArrowPatch, Patch

from streamrace.detectors.order.races import Side
from streamrace.reports.charts.frame import BAD, FIRST, SECOND, TEXT, Chart
from streamrace.reports.data.explanation import Explained
from streamrace.reports.pictures.figures import key, panels, plain
from streamrace.reports.window import Kind, Slice, Window

_LANES = 10
_OTHER: dict[Kind, str] = {"kernel": "#8a93a6", "collective": "#2f9e9e", "wait": "#a98a5d", "free": "#a98a5d"}
_WORDS: dict[Kind, str] = {"kernel": "other kernels", "collective": "other collectives", "wait": "the host waits"}
_HIGH, _RACING = 0.42, 0.62  # of a lane's height
_LEAST = 1 / 300  # of the width: shorter slices are drawn this wide
_NAME = 26  # characters of a stream, of a kernel


def draw(explanation: Explained) -> Chart | None:
    """Draw one panel for each timing that was kept; None if none was."""
    windows = [
        (title, window)
        for title, window in zip(explanation.titles(), (explanation.own, explanation.other), strict=True)
        if window
    ]
    if not windows:
        return None
    most = max(len(window.shown(_LANES)) for _, window in windows)
    figure, rows = panels(len(windows), 1, 5.6, len(windows) * (1.1 + 0.42 * most) + 0.5)
    kinds: dict[Kind, None] = {}
    for (title, window), (axes,) in zip(windows, rows, strict=True):
        kinds |= dict.fromkeys(_panel(axes, title, window, (explanation.race.first, explanation.race.second)))
    handles = [
        Patch(color=FIRST, label="1: issued first"),
        Patch(color=SECOND, label="2: issued second"),
        Line2D([], [], color=BAD, ls="--", label="held by chance alone" if explanation.fragile else "missing: no wait"),
        *(Patch(color=_OTHER[kind], label=_WORDS[kind]) for kind in _WORDS if kind in kinds),
    ]
    key(figure, handles, 3)
    return Chart(
        figure,
        "Both timings" if len(windows) > 1 else "The timing",
        "The dashed arrow runs from the access issued first to the one issued second. Where it runs backwards, the "
        "race shows.",
    )


def _panel(axes: Axes, title: str, window: Window, sides: Sequence[Side]) -> list[Kind]:
    """Draw one timing; return the kinds of other work in it."""
    lanes = window.shown(_LANES)
    row = {lane: len(lanes) - 1 - at for at, lane in enumerate(lanes)}
    racing = (window.first, window.second)
    zero = min(bar.start for bar in racing)
    least = (window.end - window.start) * _LEAST
    kinds: list[Kind] = []
    for bar in window.slices:
        if bar.lane in row and bar not in racing:
            kinds.append(bar.kind)
            _bar(axes, bar, row[bar.lane], zero, least, _OTHER[bar.kind], _HIGH)
    lowest = min(row[bar.lane] for bar in racing)
    for number, (bar, colour) in enumerate(zip(racing, (FIRST, SECOND), strict=True), 1):
        at = row[bar.lane]
        _bar(axes, bar, at, zero, least, colour, _RACING)
        middle = ((bar.start + bar.end) / 2 - zero) / 1000
        way, va = (-1, "top") if at == lowest and len(row) > 1 else (1, "bottom")  # away from the arrow
        axes.annotate(
            f"{number}: {plain(bar.kernel, _NAME)}", (middle, at + way * _RACING / 2), (0, 2 * way),
            textcoords="offset points", ha="center", va=va, fontsize=9, color=colour, fontweight="bold",
            annotation_clip=False,
        )  # fmt: skip
    ends = [(bar.effect(side) - zero) / 1000 for bar, side in zip(racing, sides, strict=True)]
    arrow = FancyArrowPatch(
        (ends[0], row[racing[0].lane]), (ends[1], row[racing[1].lane]),
        arrowstyle="-|>", mutation_scale=13, lw=1.6, ls=(0, (4, 3)), color=BAD, shrinkA=0, shrinkB=0, zorder=5,
    )  # fmt: skip
    axes.add_patch(arrow)
    axes.set_yticks(list(row.values()), [plain(lane, _NAME) for lane in row], fontsize=9)
    axes.set_ylim(-0.8, len(lanes) - 0.2)
    axes.set_xlim((window.start - zero) / 1000, (window.end - zero) / 1000)
    axes.set_title(plain(title, 60), fontsize=10, color=TEXT, loc="left")
    axes.set_xlabel("virtual time, µs", fontsize=9)
    axes.grid(axis="x", alpha=0.25)
    axes.set_axisbelow(True)
    axes.spines[["top", "right", "left"]].set_visible(False)
    return kinds


def _bar(axes: Axes, bar: Slice, at: int, zero: int, least: float, colour: str, high: float) -> None:
    wide = max(bar.end - bar.start, least)
    axes.barh(at, wide / 1000, left=(bar.start - zero) / 1000, height=high, color=colour, edgecolor=colour, lw=0.5)
