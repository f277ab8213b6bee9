"""Prints an explained race in the terminal: sentences, and both timings as text."""

from __future__ import annotations

import shlex
from pathlib import Path
from textwrap import wrap

from rich.console import Console
from rich.text import Text

from streamrace.detectors import Race
from streamrace.reports.data.explanation import Explained
from streamrace.reports.text import race as sentences
from streamrace.reports.text import reports_on, typed
from streamrace.reports.text.hang import HangTelling
from streamrace.reports.window import Slice, Window
from streamrace.trace import wording
from streamrace.trace.untrusted import visible
from streamrace.trace.wording import duration

_LANES = 8  # streams in a picture
_NAME = 22  # characters of a stream's name
_WIDEST = 78  # of the lanes


def show(console: Console, explanation: Explained, page: Path | None) -> None:
    """Print all that is known, then the page's file or the command that writes it."""
    race = explanation.race
    noun = "Pair" if explanation.fragile else "Race"
    head = f"{noun} {explanation.number} of {explanation.folder}: {race.kind}, {sentences.occurs(race)}"
    console.print(Text(visible(head, lines=False), "bold"), soft_wrap=True)
    _say(console, explanation.headline, indent="")
    for title, text in explanation.sections:
        console.print(Text(f"\n{title}", "bold"))
        for sentence in text:
            _say(console, sentence)
    if explanation.command:
        _say(console, "Again:")
        console.print(f"    {typed(explanation.command)}", highlight=False, soft_wrap=True, markup=False)
    width = max(20, min(_WIDEST, console.width - _NAME - 4))
    for title, window in zip(explanation.titles(), (explanation.own, explanation.other), strict=True):
        if window is not None:
            console.print(Text(f"\n{title}", "bold"))
            for line in lanes(window, race, width):
                console.print(f"  {_tame(line)}", highlight=False, soft_wrap=True, markup=False)
    if explanation.own or explanation.other:
        arrow = (
            "from 1 to 2, which chance alone orders" if explanation.fragile else "the wait that is missing, from 1 to 2"
        )
        console.print()
        _say(console, f"1: issued first, 2: issued second, =: other work, w: the host waits. The arrow: {arrow}.")
    for sentence in explanation.lacks:
        _say(console, sentence)
    if page is None:
        command = f"streamrace explain {shlex.quote(str(explanation.folder))} {explanation.number} --report"
        console.print(f"Page:  {typed(command)}", highlight=False, soft_wrap=True, markup=False)
    else:
        console.print(f"Page:  {page}", highlight=False, soft_wrap=True, markup=False)


def show_hang(console: Console, hang: HangTelling, folder: Path) -> None:
    """Print a hang as it is told, then the command that writes the page of its run."""
    console.print(Text(visible(f"Hang {hang.number} of {folder}", lines=False), "bold"), soft_wrap=True)
    _say(console, f"{wording.capital(hang.headline)}.", indent="")
    for title, sentences_ in hang.sections:
        console.print(Text(f"\n{title}", "bold"))
        for sentence in sentences_:
            _say(console, f"{wording.capital(sentence)}.")
    console.print(f"Page:  {typed(reports_on(folder))}", highlight=False, soft_wrap=True, markup=False)


def _say(console: Console, sentence: str, indent: str = "  ") -> None:
    for line in wrap(visible(sentence, lines=False), max(20, console.width - len(indent)), break_on_hyphens=False):
        console.print(Text(f"{indent}{_tame(line)}"), soft_wrap=True)


def _tame(line: str) -> str:
    """Prefix a line that a workflow's log would take for a command: a name may put such characters at its beginning."""
    return f". {line}" if line.lstrip().startswith(("::", "##[")) else line


def lanes(window: Window, race: Race, width: int) -> list[str]:
    """Return a line per stream, the missing edge, and the time scale. A slice takes at least one character."""
    racing = [window.first, window.second]
    shown = window.shown(_LANES)
    span = max(window.end - window.start, 1)
    lines = []
    for lane in shown:
        row = ["."] * width
        for bar in window.slices:
            if bar.lane == lane and bar not in racing:
                _put(row, bar, window.start, span, "w" if bar.kind == "wait" else "=")
        for bar, letter in zip(racing, "12", strict=True):
            if bar.lane == lane:
                _put(row, bar, window.start, span, letter)
        lines.append(f"{_named(lane):<{_NAME}}{''.join(row)}")
    lines.append(" " * _NAME + _edge(window, race, width))
    zero = min(bar.start for bar in racing)
    lines.append(" " * _NAME + _scale(window, zero, width))
    busy = len({bar.lane for bar in window.slices})
    if busy > len(shown):
        lines.append(f"{busy - len(shown)} more streams are left out.")
    return lines


def _put(row: list[str], bar: Slice, start: int, span: int, letter: str) -> None:
    width = len(row)
    left = min(max((bar.start - start) * width // span, 0), width - 1)
    right = min(max(-(-(bar.end - start) * width // span), left + 1), width)
    row[left:right] = letter * (right - left)


def _edge(window: Window, race: Race, width: int) -> str:
    """Return a dashed arrow from the first access's effect to the second's; if it runs backwards, the race shows."""
    span = max(window.end - window.start, 1)
    times = (window.first.effect(race.first), window.second.effect(race.second))
    begin, end = (min(max((time - window.start) * width // span, 0), width - 1) for time in times)
    dashes = ("- " * width)[: abs(end - begin)]
    return f"{' ' * begin}{dashes}>" if end >= begin else f"{' ' * end}<{dashes[::-1]}"


def _scale(window: Window, zero: int, width: int) -> str:
    """Return a scale with time 0, the beginning of the earlier access, and the duration from then to the end."""
    span = max(window.end - window.start, 1)
    at = min(max((zero - window.start) * width // span, 0), width - 2)
    end = f"|{duration(max(window.end - zero, 0))}"
    return f"{' ' * at}|0{end:>{max(width - at - 2, 1)}}"


def _named(lane: str) -> str:
    lane = visible(lane, lines=False)
    return lane if len(lane) < _NAME else f"{lane[: _NAME - 3]}.."
