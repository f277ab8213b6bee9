"""Draws the missing edge of a race: the stream from which each stream takes its order, and where a wait is missing.

A lane per stream, time of issue from left to right. The picture is SVG without scripts or ids, so that a page may hold
several; its colours are the page's. Text is sized for the width of a phone.
"""

from __future__ import annotations

from pathlib import PurePath

from markupsafe import Markup

from streamrace.detectors import Race, Side
from streamrace.detectors import wording as of_accesses
from streamrace.detectors.order.races import site
from streamrace.detectors.streams import stream_named
from streamrace.reports.charts.frame import FIRST, SECOND, tame
from streamrace.trace import wording

_WIDTH, _LANE, _TOP = 360, 86, 44  # width of the picture; height of a lane; middle of the first lane
_BOX, _HIGH = 184, 38  # width and height of an access's box
_BAD = "var(--bad, #cf3a3a)"
_STREAM, _KERNEL, _PLACE = 26, 16, 31  # characters


def svg(race: Race) -> Markup:
    """Return the picture of one race."""
    first, second = race.first, race.second
    streams = list(dict.fromkeys([first.stream, second.issuer, second.stream]))
    streams = [stream for stream in streams if stream] or [""]
    lane = {stream: _TOP + _LANE * at for at, stream in enumerate(streams)}
    begin, end = lane.get(first.stream, _TOP), lane.get(second.stream, _TOP)
    issuer = second.issuer
    bent = lane[issuer] if issuer in lane and issuer != second.stream else None
    if begin == end and bent is None:  # both accesses in one lane, as with an unnamed stream
        end = begin + _LANE
    height = max(*lane.values(), end) + 34
    wait = "wait or record_stream" if race.kind in {"freed", "reused"} else "wait"
    parts = [_lane(y, stream) for stream, y in lane.items()]
    parts += _edges(begin, end, bent, wait)
    parts.append(_access(4, begin, FIRST, "1", first))
    parts.append(_access(_WIDTH - _BOX - 4, end, SECOND, "2", second))
    title = Markup("<title>{}</title>").format(f"{_what(first)} and {_what(second)}: no edge orders them")
    description = Markup("<desc>{}</desc>").format(tame(race.missing_wait, 400))
    return Markup(
        '<svg xmlns="http://www.w3.org/2000/svg" role="img" viewBox="0 0 {} {}" style="width:100%;height:auto;'
        'max-width:32rem;display:block" font-family="inherit" font-size="12" fill="currentColor">{}{}{}</svg>'
    ).format(_WIDTH, height, title, description, Markup("\n").join(parts))


def _lane(y: int, stream: str) -> Markup:
    """Return the lane's line, with its name above."""
    name = stream_named(tame(stream, _STREAM), quoted=False) if stream else "a stream"
    return Markup(
        '<line x1="0" y1="{y}" x2="{width}" y2="{y}" stroke="currentColor" stroke-opacity=".35"/>'
        '<text x="{x}" y="{above}" font-size="11" fill-opacity=".75" style="unicode-bidi:isolate">{name}</text>'
    ).format(y=y, width=_WIDTH, x=4, above=y - 26, name=name)


def _edges(begin: int, end: int, bent: int | None, wait: str) -> list[Markup]:
    """Return the missing edge from the first access, and the existing one from the issuer's lane ``bent``, if given."""
    out = 4 + _BOX
    if bent is None or bent == begin:
        target = end
        into = out + 40
    else:
        target = bent
        into = out + 34
    parts = []
    if bent is not None and bent != end:
        at = _WIDTH - 60
        parts.append(_line(at, bent, at, end - _HIGH // 2 if end > bent else end + _HIGH // 2, "currentColor", ""))
        parts.append(Markup('<circle cx="{}" cy="{}" r="4"/>').format(at, bent))
        parts.append(_text(at - 8, (bent + end) // 2 + 4, "end", "currentColor", "takes its order"))
    down = target > begin
    stop = target if target == bent else target - _HIGH // 2 if down else target + _HIGH // 2
    parts.append(_line(into, begin, into, stop, _BAD, "5 4", out))
    anchor, x = ("start", into + 8) if len(wait) < 10 else ("end", into - 8)  # the left side has more room
    parts.append(_text(x, (begin + stop) // 2 + 4, anchor, _BAD, f"missing: {wait}", bold=True))
    return parts


def _line(x1: int, y1: int, x2: int, y2: int, colour: str, dash: str, begin: int | None = None) -> Markup:
    """Return an arrow down or up to (x2, y2); it starts with a horizontal part if ``begin`` is given."""
    down = 1 if y2 > y1 else -1
    path = f"M{x1} {y1}V{y2}" if begin is None else f"M{begin} {y1}H{x1}V{y2}"
    return Markup(
        '<path d="{}" fill="none" style="stroke:{colour}" stroke-width="2" stroke-dasharray="{}"/>'
        '<path d="M{} {}l-5 {back}h10z" style="fill:{colour}"/>'
    ).format(path, dash, x2, y2, back=-9 * down, colour=colour)


def _text(x: int, y: int, anchor: str, colour: str, text: str, *, bold: bool = False) -> Markup:
    return Markup('<text x="{}" y="{}" text-anchor="{}" style="fill:{}" font-weight="{}">{}</text>').format(
        x, y, anchor, colour, 700 if bold else 400, text
    )


def _access(x: int, y: int, colour: str, number: str, side: Side) -> Markup:
    """Return the access's box: operation and source line. The inner picture clips text that is too wide."""
    place = _place(side)
    below = Markup(
        '<text x="8" y="30" font-size="11.5" fill-opacity=".85" style="unicode-bidi:isolate">{}</text>'
    ).format(place)
    if not place:
        below = Markup()
    return Markup(
        '<rect x="{x}" y="{top}" width="{width}" height="{high}" rx="4" stroke-width="2"'
        ' style="fill:var(--field, Canvas);stroke:{colour}"/>'
        '<svg x="{x}" y="{top}" width="{inner}" height="{high}"><text x="8" y="{first}" font-weight="650">'
        '{number}. <tspan style="unicode-bidi:isolate">{what}</tspan></text>{below}</svg>'
    ).format(
        x=x,
        top=y - _HIGH // 2,
        width=_BOX,
        inner=_BOX - 4,
        high=_HIGH,
        colour=colour,
        first=15 if place else 23,
        number=number,
        what=_what(side),
        below=below,
    )


def _what(side: Side) -> str:
    return tame(of_accesses.access(side), 12 + _KERNEL)


def _place(side: Side) -> str:
    """Return the innermost line, as ``partition_parameters.py:1946``."""
    frame = site(side.stack)
    return wording.line(tame(PurePath(frame.file).name, _PLACE - 6), frame.line) if frame else ""
