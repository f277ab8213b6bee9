"""Limits of a library that a model of this size meets or not, as the program's process reports them to the verdict.

A framework's adapter notes them while it builds the engine. Small models do not meet limits that are absolute, so a run
of theirs says nothing about the code behind these limits.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_LONGEST = 64  # entries that are read


@dataclass
class _Reporting:
    """The settings of this process and its forks. ``scale``: adapters scale the limits to the model."""

    file: Path | None = None
    scale: bool = False


_reporting = _Reporting()


@dataclass(frozen=True)
class Limits:
    """Limits of one engine, by the names in the configuration. ``parameters``: elements of the model.

    ``never_met``: limits too large for this model; ``scaled``: the limits before and after scaling.
    """

    library: str
    parameters: int
    never_met: Mapping[str, float]
    scaled: Mapping[str, tuple[float, float]]


def note_in(file: Path) -> None:
    """Set the file to which :func:`note` writes, in this process and in its forks."""
    _reporting.file = file


def scale() -> None:
    """Let adapters scale limits to the model, in this process and in its forks."""
    _reporting.scale = True


def scaling() -> bool:
    """Check whether adapters scale limits to the model."""
    return _reporting.scale


def note(limits: Limits) -> None:
    """Report the limits of an engine; without a file do nothing."""
    if _reporting.file is not None:
        with suppress(OSError), _reporting.file.open("a", encoding="utf-8") as file:
            file.write(json.dumps(vars(limits)) + "\n")


def noted(file: Path) -> list[Limits]:
    """Return the limits that the ranks wrote to ``file``, each engine once. Lines of another form are left out."""
    found: list[Limits] = []
    try:
        lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return found
    for line in dict.fromkeys(lines[:_LONGEST]):
        with suppress(ValueError, LookupError, TypeError, AttributeError):
            data = json.loads(line)
            scaled = {str(name): (float(before), float(after)) for name, (before, after) in data["scaled"].items()}
            never = {str(name): float(value) for name, value in data["never_met"].items()}
            found.append(Limits(str(data["library"]), int(data["parameters"]), never, scaled))
    return found
