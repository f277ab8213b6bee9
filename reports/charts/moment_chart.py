"""Draws the timeline of a race: all streams of a rank around the two accesses, joined by an arrow.

The arrow runs from the access that was issued first to the one issued second. Where the arrow runs backwards, the
timing shows the race. Kernels last microseconds and the two may be a third of a second apart: so every slice has an
outline, which is a pixel wide however short the slice is, and the tools zoom along the time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from bokeh.models import ColumnDataSource, FixedTicker, HoverTool, NoOverlap, NumeralTickFormatter, Range1d
from bokeh.models.annotations.arrows import Arrow, VeeHead
from bokeh.models.annotations.labels import Label

from streamrace.detectors import Race, Side
from streamrace.detectors import wording as of_accesses
from streamrace.reports.charts.frame import BAD, FIRST, SECOND, Chart, Key, explored, framed, tame, tooltip
from streamrace.reports.window import Kind, Slice, Window

_LANES = 16  # our programs have no more
_LANE = 44  # pixels of a lane
_THICK = 0.21  # of a lane's height, above and below its middle
_EDGE = 0.35  # fraction of the width; nearer to the edge a label is aligned towards the middle
_LABEL = 18  # characters of a lane's name
_TOLD, _PLACE = 160, 90  # characters in a tooltip, which wraps
_COLOURS: dict[Kind, str] = {"kernel": "#8a93a6", "collective": "#2f9e9e", "wait": "#a98a5d", "free": "#a98a5d"}
_NAMES: dict[Kind, str] = {"kernel": "kernel", "collective": "collective", "wait": "host blocked"}
_TOOLTIP = tooltip(
    "<b>@kernel</b> @about",
    "stream @lane",
    "from @left{0,0.000} µs",
    "for @duration{0,0.000} µs",
    "@place",
)


def draw(window: Window, race: Race) -> Chart:
    """Draw the timeline. ``race``: names the two sides."""
    zero = min(window.first.start, window.second.start)
    lanes = _lanes(window)
    row = {lane: at for at, lane in enumerate(lanes)}
    drawn = framed(
        height=_LANE * len(lanes) + 100,
        x_range=Range1d(start=(window.start - zero) / 1000, end=(window.end - zero) / 1000),
        y_range=Range1d(start=len(lanes) - 0.2, end=-0.8),
        toolbar_location="above",
    )
    drawn.ygrid.grid_line_color = None
    drawn.yaxis.ticker = FixedTicker(ticks=list(range(len(lanes))))
    drawn.yaxis.major_label_overrides = {at: tame(lane, _LABEL) for at, lane in enumerate(lanes)}
    drawn.yaxis.major_tick_line_color = None
    drawn.xaxis.axis_label = "time (µs)"
    drawn.xaxis.formatter = NumeralTickFormatter(format="0,0.[000]")
    drawn.xaxis.ticker.desired_num_ticks = 4
    drawn.xaxis.major_label_policy = NoOverlap()
    racing = (window.first, window.second)
    kinds = [kind for kind in _COLOURS if any(bar.kind == kind and bar not in racing for bar in window.slices)]
    shown = []
    for kind in kinds:
        slices = [bar for bar in window.slices if bar.kind == kind and bar not in racing and bar.lane in row]
        shown.append(_boxes(drawn, slices, row, zero, _COLOURS[kind], ""))
    sides = (race.first, race.second)
    for bar, colour, word in zip(racing, (FIRST, SECOND), ("first", "second"), strict=True):
        shown.append(_boxes(drawn, [bar], row, zero, colour, f"issued {word}"))
    _arrow(drawn, [(bar.effect(side), row[bar.lane]) for bar, side in zip(racing, sides, strict=True)], zero)
    lower = int(row[window.second.lane] > row[window.first.lane])  # the label below this slice does not cross the arrow
    for at, (bar, side, colour) in enumerate(zip(racing, sides, (FIRST, SECOND), strict=True)):
        text = f"{('first', 'second')[at]}: {_access(side)}"  # a phone is too narrow for more
        _label(drawn, window, bar, row[bar.lane], zero, colour, text, below=at == lower)
    drawn.add_tools(HoverTool(renderers=shown, tooltips=_TOOLTIP, limit=1, point_policy="follow_mouse"))
    explored(drawn, "width")
    return Chart(drawn, "The streams around the two accesses", _text(window, sides, len(lanes)), _keys(kinds))


def _lanes(window: Window) -> list[str]:
    racing = {window.first.lane, window.second.lane}
    rest = [lane for lane in window.lanes if lane not in racing][: _LANES - len(racing)]
    return [lane for lane in window.lanes if lane in racing or lane in rest]


def _boxes(drawn: Any, slices: Sequence[Slice], row: Mapping[str, int], zero: int, colour: str, role: str) -> Any:
    """Draw slices of one colour. Times in microseconds from ``zero`` (nanoseconds)."""
    thick = 1.35 * _THICK if role else _THICK
    source = ColumnDataSource(
        {
            "left": [(bar.start - zero) / 1000 for bar in slices],
            "right": [(bar.end - zero) / 1000 for bar in slices],
            "top": [row[bar.lane] - thick for bar in slices],
            "bottom": [row[bar.lane] + thick for bar in slices],
            "duration": [(bar.end - bar.start) / 1000 for bar in slices],
            "lane": [tame(bar.lane, _TOLD) for bar in slices],
            "kernel": [tame(f"waits ({bar.kernel})" if bar.kind == "wait" else bar.kernel, _TOLD) for bar in slices],
            "about": [tame(bar.parameter, _TOLD) + (f" ({role})" if role else "") for bar in slices],
            "place": [tame(bar.place, _PLACE) for bar in slices],
        }
    )
    return drawn.quad(
        "left",
        "right",
        "top",
        "bottom",
        source=source,
        fill_color=colour,
        fill_alpha=0.75,
        line_color=colour,
        line_width=3 if role else 1,
        name=role or "slices",
    )


def _arrow(drawn: Any, ends: Sequence[tuple[int, int]], zero: int) -> None:
    """Draw the arrow from the first-issued effect to the second-issued one. ``ends``: (nanoseconds, row) of each."""
    (begin, above), (end, below) = ends
    if above == below:
        out = into = above - 1.35 * _THICK
    else:
        down = 1 if below > above else -1
        out, into = above + down * 1.35 * _THICK, below - down * 1.35 * _THICK
    line: dict[str, Any] = {
        "line_color": BAD,
        "line_width": 2,
        "line_dash": [6, 3],
    }  # a dict, as Bokeh's type stubs name these arguments differently
    drawn.add_layout(
        Arrow(
            x_start=(begin - zero) / 1000,
            y_start=out,
            x_end=(end - zero) / 1000,
            y_end=into,
            **line,
            end=VeeHead(size=11, fill_color=BAD, line_color=BAD),
        )
    )


def _label(drawn: Any, window: Window, bar: Slice, row: int, zero: int, colour: str, text: str, *, below: bool) -> None:
    """Label the slice above or below it; near an edge of the chart, aligned towards the middle, as space allows."""
    part = ((bar.start + bar.end) / 2 - window.start) / max(window.end - window.start, 1)
    align: Literal["left", "center", "right"] = "center"
    x, offset = (bar.start + bar.end) / 2, 0
    if part < _EDGE:
        align, x, offset = "left", bar.start, -2
    elif part > 1 - _EDGE:
        align, x, offset = "right", bar.end, 2
    drawn.add_layout(
        Label(
            x=(x - zero) / 1000,
            y=row + (1.35 if below else -1.35) * _THICK,
            x_offset=offset,
            y_offset=-3 if below else 3,
            text=text,
            text_align=align,
            text_baseline="top" if below else "bottom",
            text_color=colour,
            text_font_size="11px",
            text_font_style="bold",
        )
    )


def _access(side: Side) -> str:
    """Return the access in short: ``write by copy_``."""
    return tame(of_accesses.access(side), 28)


def _text(window: Window, sides: Sequence[Side], lanes: int) -> str:
    (first, second) = (bar.effect(side) for bar, side in zip((window.first, window.second), sides, strict=True))
    parts = [
        "All streams of the rank and its host; time counts from the beginning of the earlier access.",
        "The arrow runs from the access issued first to the one issued second.",
    ]
    apart = f"{abs(first - second) / 1000:,.1f} µs"
    if second < first:
        parts.append(f"Here it runs backwards: the second took effect {apart} before the first.")
    else:
        parts.append(f"Here the second took effect {apart} after the first, but nothing makes it wait.")
    if window.left_out:
        parts.append(f"{window.left_out} slices farther from the two are left out.")
    if lanes < len(window.lanes):
        parts.append(f"{len(window.lanes) - lanes} streams are left out.")
    return " ".join(parts)


def _keys(kinds: Sequence[Kind]) -> list[Key]:
    return [
        Key("box", "issued first", FIRST),
        Key("box", "issued second", SECOND),
        Key("line", "no wait orders them", BAD, "6 3"),
        *(Key("box", _NAMES[kind], _COLOURS[kind]) for kind in kinds if kind in _NAMES),
    ]
