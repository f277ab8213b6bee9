"""The terminal, as every command writes to it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import IO

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from streamrace.trace.untrusted import visible


class Terminal(Console):
    """Names come from files and from users' programs: control characters of theirs come out as codes, so that none
    clears the screen, moves the cursor or turns the text around. rich's own, for colours and for what moves, do not.
    For the same reason no text is markup: colours are said by ``style``.
    """

    def __init__(self, *, stderr: bool = False, file: IO[str] | None = None) -> None:
        super().__init__(stderr=stderr, file=file, markup=False)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=visible(segment.text))
