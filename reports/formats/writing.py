"""Which formats there are, and where they go."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from streamrace.reports.formats import github, items, junit, plain, sarif

_WRITERS = {"json": plain.text, "sarif": sarif.text, "junit": junit.text, "github": github.text}


def text(folder: Path, form: str) -> str:
    """What was found, from the folder of a run of ``streamrace check``. Raises :class:`ReportError`."""
    return _WRITERS[form](items.load(folder))


def write(text: str, file: Path | None) -> None:
    """Into ``file``, whole or not at all; None: standard output. Raises OSError."""
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
