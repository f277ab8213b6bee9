"""Holds the parts shared by the charts of all pages: frame, key, and names that are safe to draw.

Colours are of middle lightness on a transparent ground, so that they are readable in light and dark mode.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Any, Literal, NamedTuple

from bokeh.models import (
    BasicTicker,
    BoxZoomTool,
    HoverTool,
    NoOverlap,
    NumeralTickFormatter,
    PanTool,
    Range1d,
    ResetTool,
    WheelZoomTool,
    ZoomInTool,
    ZoomOutTool,
)
from bokeh.plotting import figure

from streamrace.trace import wording

TEXT, GRID = "#858b96", "#85858533"
FIRST, SECOND = "#3b82d6", "#d0661f"  # of two racing accesses, in the order in which they were issued
BAD = "#cf3a3a"


class Key(NamedTuple):
    """A line of a chart's key.

    ``shape``: line, box, frame or cross; ``dash``: lengths on and off, in pixels. ``marker``: the marker on the line,
    as the path of an SVG of 22 by 12.
    """

    shape: str
    name: str
    colour: str
    dash: str = ""
    marker: str = ""


@dataclass(frozen=True)
class Chart:
    """A figure of Bokeh or of matplotlib, its title and a sentence about it.

    ``keys``: for a Bokeh figure; the page draws them, so that they wrap on a phone.
    """

    figure: Any
    title: str
    text: str
    keys: Sequence[Key] = ()


def framed(**more: Any) -> Any:
    """Return a figure on a transparent ground, without a toolbar. ``more``: arguments of Bokeh's ``figure``."""
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
    """Return a figure with the steps (ascending) on the x axis."""
    x_range = Range1d(start=steps[0] - 0.6, end=steps[-1] + 0.6)
    drawn = framed(x_range=x_range, y_range=y_range, height=height, **more)
    drawn.xaxis.axis_label = "step"
    drawn.xaxis.major_label_policy = NoOverlap()  # a phone is too narrow for steps of seven digits
    drawn.xaxis.ticker = BasicTicker(min_interval=1, num_minor_ticks=0)
    drawn.xaxis.formatter = NumeralTickFormatter(format="0,0")
    return drawn


def explored(drawn: Any, dimensions: Literal["both", "width"] = "both") -> None:
    """Add the tools to zoom and pan to a complete figure that was created with ``toolbar_location="above"``.

    No tool is active until chosen: wheel and finger scroll the page.
    """
    drawn.add_tools(
        BoxZoomTool(dimensions=dimensions),
        PanTool(dimensions=dimensions),
        WheelZoomTool(dimensions=dimensions),
        ZoomInTool(dimensions=dimensions),
        ZoomOutTool(dimensions=dimensions),
        ResetTool(),
    )
    for tool in drawn.select(HoverTool):
        tool.visible = False  # the hover tool needs no button
    drawn.yaxis.minor_tick_line_color = None
    drawn.toolbar.active_drag = drawn.toolbar.active_scroll = None
    drawn.toolbar.logo = None


def tooltip(*lines: str) -> str:
    """Return a Bokeh tooltip of these lines, in which ``@column`` is replaced, escaped. Only a string can wrap.

    Bokeh places the tooltip on the wider side of the pointer, so its width stays below half a phone's.
    """
    return f'<div style="max-width:min(22rem,44vw);overflow-wrap:anywhere">{"<br>".join(lines)}</div>'


def swatch(colour: str) -> str:
    """Return a square of the colour, for a tooltip."""
    return f'<span style="color:{colour}">■</span>'


def literal(text: str) -> str:
    """Escape ``text`` so that a tooltip shows it literally."""
    return escape(text).replace("@", "&#64;").replace("$", "&#36;")


def tail(name: str, most: int) -> str:
    """Return ``name``, safe and cut to about ``most`` characters: the end of a path says more than its beginning."""
    name = tame(name, 4 * most)
    if len(name) <= most:
        return name
    end = name[-most:]
    word = end if name[-most - 1] == "." else end.partition(".")[2]
    return f"…{word if len(word) > most // 2 else end}"


def tame(text: str, most: int) -> str:
    """Return ``text`` without bidirectional controls and TeX: Bokeh would fetch a library to typeset it."""
    text = "".join("·" if unicodedata.category(letter)[0] == "C" else letter for letter in wording.cut(text, most))
    return re.sub(r"\$(?=\$)|\\(?=[(\[])", r"\g<0> ", text)
