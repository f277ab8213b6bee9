"""What the charts on all pages share: their frame, their key, and names that are safe to draw.

Colours are of middle lightness on a transparent ground, so that they can be read in the light and in the dark.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from bokeh.models import BasicTicker, NumeralTickFormatter, Range1d
from bokeh.plotting import figure

TEXT, GRID = "#858b96", "#85858533"


class Key(NamedTuple):
    """A line of a chart's key. ``shape``: line, box, frame or cross; ``dash``: lengths on and off, in pixels."""

    shape: str
    name: str
    colour: str
    dash: str = ""


@dataclass(frozen=True)
class Chart:
    """A figure, what it is called, and its key: the page draws that itself, so that it wraps on a phone."""

    figure: Any
    title: str
    text: str
    keys: Sequence[Key]


def framed(**more: Any) -> Any:
    """A figure on a transparent ground, without a toolbar. ``more``: as for Bokeh's ``figure``."""
    drawn = figure(
        **{
            "sizing_mode": "stretch_width",
            "tools": "",
            "toolbar_location": None,  # panning by touch would keep a phone's page from scrolling
            "background_fill_color": None,
            "border_fill_color": None,
            "outline_line_color": None,
            **more,
        }
    )
    drawn.grid.grid_line_color = GRID
    for name in ("axis_line_color", "major_tick_line_color", "minor_tick_line_color"):
        setattr(drawn.axis, name, TEXT)
    for name in ("axis_label_text_color", "major_label_text_color"):
        setattr(drawn.axis, name, TEXT)
    drawn.axis.major_label_text_font_size = "12px"
    drawn.axis.axis_label_text_font_style = "normal"
    return drawn


def over_steps(steps: Sequence[int], y_range: Any, height: int, **more: Any) -> Any:
    """A figure with the steps (ascending) below."""
    x_range = Range1d(start=steps[0] - 0.6, end=steps[-1] + 0.6)
    drawn = framed(x_range=x_range, y_range=y_range, height=height, **more)
    drawn.xaxis.axis_label = "step"
    drawn.xaxis.ticker = BasicTicker(min_interval=1, num_minor_ticks=0)
    drawn.xaxis.formatter = NumeralTickFormatter(format="0")
    return drawn


def tame(text: str, most: int) -> str:
    """Without characters that turn text around, and without TeX: Bokeh would fetch a library to set it."""
    if len(text) > most:
        text = f"{text[: most // 2]}…{text[-most // 2 :]}"
    text = "".join("·" if unicodedata.category(one)[0] == "C" else one for one in text)
    return re.sub(r"\$(?=\$)|\\(?=[(\[])", r"\g<0> ", text)
