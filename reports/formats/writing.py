"""Selects a format's writer, and writes its text to a file or standard output."""

from __future__ import annotations

import sys
from pathlib import Path

from streamrace.reports.data.findings import Findings
from streamrace.reports.data.whole import replace_file
from streamrace.reports.formats import github, items, junit, plain, sarif

_WRITERS = {"json": plain.text, "sarif": sarif.text, "junit": junit.text, "github": github.text}


def text(findings: Findings, form: str) -> str:
    """Return the findings of a run of ``streamrace check`` in a format. Raises :class:`ReportError`."""
    return _WRITERS[form](items.checked_run(findings))


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
    replace_file(file, lambda beside: beside.write_bytes(raw))
