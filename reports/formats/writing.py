"""Selects a format's writer, and writes its text to a file or standard output."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from streamrace.reports.formats import github, items, junit, plain, sarif

_WRITERS = {"json": plain.text, "sarif": sarif.text, "junit": junit.text, "github": github.text}


def text(folder: Path, form: str) -> str:
    """Return the findings of a run's folder of ``streamrace check`` in a format. Raises :class:`ReportError`."""
    return _WRITERS[form](items.load(folder))


def write(text: str, file: Path | None) -> None:
    """Write the text to ``file``, whole or not at all; None: to standard output. Raises OSError."""
    if file is None:
        coded = sys.stdout.encoding or "utf-8"
        sys.stdout.write(text.encode(coded, "backslashreplace").decode(coded))
        sys.stdout.flush()
        return
    raw = text.encode("utf-8", "backslashreplace")
    if file.exists() and not file.is_file():  # a pipe, a terminal
        file.write_bytes(raw)
        return
    beside = file.with_name(f".{file.name}.{os.getpid()}.part")
    try:
        beside.write_bytes(raw)
        beside.replace(file)
    finally:
        beside.unlink(missing_ok=True)
