"""Identifies a folder for a person by its model and the time at which it was written."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any


def written(*files: Path) -> str:
    """Return when the first existing file of these was written, in UTC; empty if none exists.

    No file of a run holds the time: otherwise the same command would not leave the same bytes.
    """
    for file in files:
        try:
            when = datetime.fromtimestamp(file.stat().st_mtime, UTC)
        except (OSError, ValueError, OverflowError):
            continue
        return f"{when:%Y-%m-%d %H:%M} UTC"
    return ""


def model_of(data: Mapping[str, Any]) -> str:
    """Return the model named by a file's scenario, job or configuration; for a program of the user's own, its name."""
    for key in ("scenario", "job", "configuration"):
        options = data.get(key)
        if isinstance(options, Mapping):
            named = [options.get("model"), options.get("size")] if "model" in options else [options.get("program")]
            return " ".join(part for part in named if isinstance(part, str))
    return ""


def stamp(title: str, model: str, when: str) -> str:
    """Return the head line of a page: its subject, and when that was written."""
    of = f" of {model}" if model else ""
    return f"{title}{of}, {when}" if when else f"{title}{of}"
