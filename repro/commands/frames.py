"""What the studies' commands share: lists of choices on the command line, and the rows of a frame."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from scenarios.scenario import ScenarioError

Number = TypeVar("Number", int, float)
_SHOWN = 12


def among(option: str, text: str, known: Sequence[str]) -> list[str]:
    """Words with commas between them, all of them known. Raises :class:`ScenarioError`."""
    found = list(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    choices = ", ".join(known[:_SHOWN])
    if wrong := [part for part in found if part not in known]:
        raise ScenarioError(f"{option} does not know '{wrong[0]}': choose from {choices}")
    if not found:
        raise ScenarioError(f"{option} names none: choose from {choices}")
    return found


def numbers(option: str, text: str, kind: Callable[[str], Number]) -> list[Number]:
    """Numbers above 0 with commas between them, sorted, each once. Raises :class:`ScenarioError`."""
    try:
        found = sorted({kind(part) for part in text.split(",") if part.strip()})
    except ValueError:
        found = []
    if not found or found[0] <= 0:
        raise ScenarioError(f"{option} takes numbers above 0 with commas between them, not '{text}'")
    return found


def rows(frame: Any) -> Iterator[Any]:
    """A frame's rows, with its columns as attributes; which they are no type says."""
    yield from frame.itertuples()
