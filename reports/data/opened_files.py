"""Describes the files that a checked program opened for reading (:mod:`streamrace.device.opened_files`)."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from pydantic import Base64Bytes, ValidationError

from streamrace.reports.data.schema import JsonPart
from streamrace.trace.untrusted import Unreadable, contents


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
    """Return the files that the ranks recorded, each once. Lines of another form are left out; no record: none."""
    found: dict[str, KeptOpenedFile] = {}
    with suppress(OSError, Unreadable):
        for line in contents(file).splitlines():
            with suppress(ValidationError):
                opened = KeptOpenedFile.model_validate_json(line)
                found.setdefault(opened.key, opened)
    return [found[key] for key in sorted(found)]
