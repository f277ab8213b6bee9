"""Prints to the terminal on behalf of all commands."""

from __future__ import annotations

from collections.abc import Iterable
from typing import IO, Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from streamrace.trace.untrusted import visible


class Terminal(Console):
    """A console that shows control characters in text as codes: names from files and users' programs cannot clear the
    screen, move the cursor or reverse the text. rich's own control codes, for colours and live displays, are kept. For
    the same reason no text is markup: colours are set by ``style``.
    """

    def __init__(self, *, stderr: bool = False, file: IO[str] | None = None) -> None:
        super().__init__(stderr=stderr, file=file, markup=False)

    def print(self, *objects: Any, **options: Any) -> None:
        """Print without cutting a line that is longer than the terminal, such as one with a long path."""
        super().print(*objects, **{"crop": False, **options})

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=visible(segment.text))
