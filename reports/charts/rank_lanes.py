"""Draws a hang: a lane for each rank, with the last call that the ranks made alike and the one in which each stands.

The picture is SVG without scripts or ids, as that of :mod:`.edge`; text is sized for the width of a phone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from markupsafe import Markup

from streamrace.detectors import Hang, MayHang
from streamrace.detectors.hangs import Issue, Stand
from streamrace.detectors.order.races import site
from streamrace.reports.charts.frame import BAD, FIRST, SECOND, tame
from streamrace.trace import wording

_WIDTH, _LANE, _TOP = 360, 68, 8  # width of the picture; height of a lane; top of the first lane's boxes
_MARGIN, _HIGH, _GAP = 46, 54, 8
_MOST = 8  # lanes
_TEXT = 21  # characters of a line in a box that has half of the width
_GREY = "currentColor"


class _Box(NamedTuple):
    """A call in a lane. ``column``: 0 or 1; ``lines``: its text, three at most; ``wide``: it fills both columns."""

    column: int
    lines: tuple[str, ...]
    colour: str
    wide: bool = False


def svg(finding: Any) -> Markup:
    """Return the picture of a :class:`Hang` or :class:`MayHang`; empty for any other finding."""
    if isinstance(finding, Hang):
        lanes = [(f"rank {stand.rank}", list(_of_stand(stand, finding))) for stand in finding.stands[:_MOST]]
        title = f"Where {len(finding.stands)} ranks stand"
    elif isinstance(finding, MayHang):
        colours = _colours([issue for step in finding.circle for issue in (step.earlier, step.later)])
        lanes = [
            (f"rank {step.rank}", [_of(step.earlier, 0, colours), _of(step.later, 1, colours)])
            for step in finding.circle[:_MOST]
        ]
        title = "The order in which each rank issues its collectives"
    else:
        return Markup()
    height = _TOP + _LANE * len(lanes)
    parts = [part for at, (name, boxes) in enumerate(lanes) for part in _lane(_TOP + _LANE * at, name, boxes)]
    return Markup(
        '<svg xmlns="http://www.w3.org/2000/svg" role="img" viewBox="0 0 {} {}" style="width:100%;height:auto;'
        'max-width:36rem;display:block" font-family="inherit" font-size="11" fill="currentColor">'
        "<title>{}</title>{}</svg>"
    ).format(_WIDTH, height, title, Markup("\n").join(parts))


def _of_stand(stand: Stand, hang: Hang) -> Iterator[_Box]:
    culprit = stand.rank in (hang.first.rank, hang.second.rank)
    if hang.common is not None:
        yield _Box(0, ("all made this call", wording.frame(hang.common)), _GREY)
    if stand.issue is None:
        yield _Box(1, ("has ended",), BAD, wide=hang.common is None)
    else:
        yield _Box(1, _lines(stand.issue), BAD if culprit else _GREY, wide=hang.common is None)


def _of(issue: Issue, column: int, colours: Mapping[tuple[str, int], str]) -> _Box:
    return _Box(column, _lines(issue), colours.get((issue.group, issue.number), _GREY))


def _colours(issues: Sequence[Issue]) -> Mapping[tuple[str, int], str]:
    """Return the colours of the first two collectives: each has its own on all ranks."""
    return dict(zip(dict.fromkeys((issue.group, issue.number) for issue in issues), (FIRST, SECOND), strict=False))


def _lines(issue: Issue) -> tuple[str, ...]:
    kind, of, sizes = issue.call.partition(" of ")
    frame = site(issue.stack)
    return kind, f"{of.lstrip()}{sizes}", wording.frame(frame) if frame else ""


def _lane(top: int, name: str, boxes: Sequence[_Box]) -> Iterator[Markup]:
    middle = top + _HIGH // 2
    yield Markup(
        '<line x1="{x}" y1="{y}" x2="{end}" y2="{y}" stroke="currentColor" stroke-opacity=".35"/>'
        '<text x="0" y="{text}" font-weight="650">{name}</text>'
    ).format(x=_MARGIN, y=middle, end=_WIDTH, text=middle + 4, name=name)
    half = (_WIDTH - _MARGIN - _GAP) // 2
    for box in boxes:
        x = _MARGIN + (0 if box.wide else box.column * (half + _GAP))
        width = _WIDTH - _MARGIN - 2 if box.wide else half - 2
        longest = 2 * _TEXT if box.wide else _TEXT
        yield Markup(
            '<rect x="{x}" y="{y}" width="{width}" height="{high}" rx="4" stroke-width="1.5"'
            ' style="fill:var(--field, Canvas);stroke:{colour}"/>'
            '<svg x="{x}" y="{y}" width="{width}" height="{high}">{text}</svg>'
        ).format(x=x, y=top, width=width, high=_HIGH, colour=box.colour, text=Markup("").join(_text(box, longest)))


def _text(box: _Box, longest: int) -> Iterator[Markup]:
    for at, line in enumerate(box.lines):
        yield Markup('<text x="6" y="{}" font-weight="{}" style="unicode-bidi:isolate">{}</text>').format(
            15 + 16 * at, 400 if at else 650, tame(line, longest)
        )
