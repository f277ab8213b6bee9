"""Describes the files that a checked program opened for reading (:mod:`streamrace.device.opened_files`)."""

from __future__ import annotations

from pathlib import Path

from pydantic import Base64Bytes

from streamrace.reports.data.schema import JsonPart


class KeptOpenedFile(JsonPart):
    """A file. ``path``: the whole one; ``name``: relative to the program or its working folder, empty: outside of both.

    ``data``: its contents at that time; None if it lies outside, is hidden or too large.
    """

    path: str
    name: str
    data: Base64Bytes | None

    @property
    def key(self) -> str:
        """Return the path by which the file is one, in all ranks and runs."""
        return self.name or self.path


def noted(file: Path) -> list[KeptOpenedFile]:
    """Return the files that the ranks recorded, each once."""
    found: dict[str, KeptOpenedFile] = {}
    for opened in KeptOpenedFile.read_lines(file):
        found.setdefault(opened.key, opened)
    return [found[key] for key in sorted(found)]
