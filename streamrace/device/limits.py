"""Reports limits of a library that a model of this size meets or not, from the program's process to the verdict.

A framework's adapter notes them while it builds the engine. Small models do not meet limits that are absolute, so a run
of theirs says nothing about the code behind these limits.
"""

from __future__ import annotations

import functools
import inspect
import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

LARGE = 6_738_415_616
"""Parameters of Llama-2-7B: limits of this model are scaled to smaller ones, as scenarios do, too."""


@dataclass
class _Reporting:
    """The settings of this process and its forks. ``scale``: adapters scale the limits to the model."""

    file: Path | None = None
    scale: bool = False


_reporting = _Reporting()


def note_in(file: Path) -> None:
    """Set the file to which :func:`note` writes, in this process and in its forks."""
    _reporting.file = file


def scale() -> None:
    """Let adapters scale limits to the model, in this process and in its forks."""
    _reporting.scale = True


def scaling() -> bool:
    """Check whether adapters scale limits to the model."""
    return _reporting.scale


def observe(engine: Any, limited: Callable[[Mapping[str, Any]], Mapping[str, Any]]) -> None:
    """Call ``limited`` with the arguments of each new ``engine``, a class; those that it returns take their place.

    It lies here because frames of this package are left out of call sites.
    """
    plain = engine.__init__
    signature = inspect.signature(plain)

    @functools.wraps(plain)
    def begin(self: Any, *arguments: Any, **named: Any) -> None:
        try:
            bound = signature.bind(self, *arguments, **named)
        except TypeError:
            plain(self, *arguments, **named)  # raises its own error
            return
        bound.apply_defaults()
        bound.arguments.update(limited(bound.arguments))
        plain(*bound.args, **bound.kwargs)

    engine.__init__ = begin


def note(
    library: str, parameters: int, never_met: Mapping[str, float], scaled: Mapping[str, tuple[float, float]]
) -> None:
    """Report the limits of an engine, as :class:`streamrace.reports.data.limits.KeptLimits` has them."""
    if _reporting.file is not None:
        noted = {"library": library, "parameters": parameters, "never_met": never_met, "scaled": scaled}
        with suppress(OSError), _reporting.file.open("a", encoding="utf-8") as file:
            file.write(json.dumps(noted) + "\n")
