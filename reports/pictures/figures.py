"""Holds the matplotlib helpers of pages and files: on a page an image without scripts or fonts, as a file a PNG.

Colours are of middle lightness, and the ground is transparent on a page, so that they are readable in light and dark
mode.
"""

from __future__ import annotations

import base64
import threading
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

import matplotlib as mpl
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import SymmetricalLogLocator

from streamrace.reports.charts.frame import TEXT, tame

_SETTINGS = threading.Lock()  # matplotlib's settings are global, and pages are built in threads


def panels(rows: int, columns: int, width: float, height: float, **more: Any) -> tuple[Figure, list[list[Axes]]]:
    """Return a figure of ``rows`` x ``columns`` axes, in inches. ``more``: arguments of ``Figure.subplots``."""
    figure = Figure(figsize=(width, height), layout="constrained", facecolor="none")
    axes = figure.subplots(rows, columns, squeeze=False, **more)
    for panel in axes.flat:
        panel.set_facecolor("none")
        panel.tick_params(which="both", colors=TEXT, labelsize=9)
        panel.spines[:].set_color(TEXT)
        panel.xaxis.label.set_color(TEXT)
        panel.yaxis.label.set_color(TEXT)
    return figure, axes.tolist()


def key(figure: Figure, handles: Sequence[Any], columns: int = 2) -> None:
    """Add the legend of the colours below the panels."""
    figure.legend(
        handles=handles, loc="outside lower center", ncols=columns, fontsize=9, frameon=False, labelcolor=TEXT
    )


def bars(
    axes: Axes, places: Sequence[int], values: Sequence[float], colours: Sequence[str], *, least: float,
    labels: Sequence[str] = (),
) -> None:  # fmt: skip
    """Draw horizontal bars on a symmetric logarithmic axis, with their ``labels``. ``least``: below this the scale is
    linear.
    """
    drawn = axes.barh(places, values, color=colours, height=0.7)
    if labels:
        axes.bar_label(drawn, labels, padding=3, fontsize=9, color=TEXT)
    axes.set_xscale("symlog", linthresh=least)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.10g}")
    axes.xaxis.set_minor_locator(SymmetricalLogLocator(base=10, linthresh=least, subs=range(2, 10)))
    axes.grid(axis="x", alpha=0.25)


def plain(text: str, most: int = 40) -> str:
    """Return ``text`` for literal use in a figure: without TeX, and without characters that its font lacks."""
    return "".join(letter if ord(letter) < 0x250 else "·" for letter in tame(text, most)).replace("$", r"\$")


def svg(figure: Figure) -> Markup:
    """Return an image for a page, reproducible bit for bit; as an image's data, nothing in it can run."""
    text = BytesIO()
    vector(figure, text)
    data = base64.b64encode(text.getvalue()).decode()
    return Markup('<img alt="" src="data:image/svg+xml;base64,{}">').format(data)


def vector(figure: Figure, into: Path | BytesIO) -> None:
    """Write a figure as SVG: the same figure gives the same bytes."""
    with _SETTINGS, mpl.rc_context({"svg.hashsalt": "reports"}):
        figure.savefig(into, format="svg", metadata={"Date": None, "Creator": None})


def png(figure: Figure, path: Path, dots: int = 150) -> None:
    """Write a figure as PNG on white ground, for slides."""
    figure.savefig(path, dpi=dots, facecolor="white", metadata={"Software": None})
