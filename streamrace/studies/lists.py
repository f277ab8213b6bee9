"""Parses the lists on command lines."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from streamrace.frameworks.deepspeed.fixes import Fix
from streamrace.scenarios.base import ScenarioError

Number = TypeVar("Number", int, float)
_SHOWN = 12
_MOST = 1e9  # limit of each number in a list


def words(text: str) -> list[str]:
    """Split at commas, without duplicates."""
    return list(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))


def among(option: str, text: str, allowed: Sequence[str]) -> list[str]:
    """Split at commas; all words must be in ``allowed``. Raises :class:`ScenarioError`."""
    parts = words(text)
    choices = ", ".join(allowed[:_SHOWN])
    if wrong := [part for part in parts if part not in allowed]:
        raise ScenarioError(f"{option} does not know '{wrong[0]}': choose from {choices}")
    if not parts:
        raise ScenarioError(f"{option} names none: choose from {choices}")
    return parts


def fixes(text: str) -> list[Fix]:
    """Parse comma-separated names of fixes. Raises :class:`ScenarioError`."""
    names = words(text)
    if unknown := [word for word in names if word not in set(Fix)]:
        raise ScenarioError(f"unknown fix '{unknown[0]}': choose from {', '.join(Fix)}")
    if not names:
        raise ScenarioError(f"--fixes names none: choose from {', '.join(Fix)}")
    return [fix for word in names for fix in Fix if fix == word]


def numbers(
    option: str, text: str, kind: Callable[[str], Number], *, above: int = 0, what: str = "numbers above 0"
) -> list[Number]:
    """Parse comma-separated finite numbers; sort, without duplicates. Raises :class:`ScenarioError`."""
    try:
        parsed = sorted({kind(word) for word in words(text)})
    except ValueError:
        parsed = []
    if not parsed or not all(above < number <= _MOST for number in parsed):
        raise ScenarioError(f"{option} takes {what} with commas between them, not '{text}'")
    return parsed
