"""Splits a long trace into parts: the first is kept, each later part is removed once the judge has read it.

So a run of any length leaves a folder of bounded size. The kept part is the beginning, without gaps: a trace with gaps
could be judged again and called clean. It ends with an :class:`Onward`, at which every reader except
:class:`PartReader` raises an error.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from streamrace.trace.encoding import Packed
from streamrace.trace.files import TraceReader, TraceWriter
from streamrace.trace.records import Collective, Launch, Onward, TraceError, TraceRecord

_PART = 4 << 20  # bytes of each part that is not kept


class PartWriter(TraceWriter):
    """Writes one rank's trace in parts and keeps ``keep`` bytes, and a little more: a part ends between two batches."""

    def __init__(self, path: Path, *, rank: int, world: int, info: dict[str, Any], keep: int) -> None:
        self._path, self._most = path, keep
        self._part = self._operations = 0
        self._op = -1
        super().__init__(path, rank=rank, world=world, info=info)

    def write(self, records: Iterable[TraceRecord | Packed]) -> None:
        if self._file.tell() >= self._most:
            self._go_on()
        super().write(map(self._counted, records))

    def _counted(self, record: TraceRecord | Packed) -> TraceRecord | Packed:
        if isinstance(record, Packed):
            if record.operations:
                self._operations += record.operations
                self._op = record.op
        elif isinstance(record, (Launch, Collective)):
            self._operations += 1
            self._op = record.op
        return record

    def _go_on(self) -> None:
        following = part_of(self._path, self._part + 1).open("wb")
        super().write([Onward(self._part + 1, self._operations, self._op)])
        self._file.close()
        self._file, self._part, self._most = following, self._part + 1, _PART


class PartReader(TraceReader):
    """Reads a trace and its further parts. ``first``: the record at the end of the first part, once read. ``thinned``:
    the reader reached a part that has been removed.

    ``kept``: accept a thinned trace and read the parts that remain. Raises
    :class:`streamrace.trace.records.TraceError`.
    """

    def __init__(self, path: Path, *, kept: bool = False) -> None:
        super().__init__(path)
        self._kept = kept
        self._part = self._thinned = 0
        self.first: Onward | None = None
        self.thinned = False

    def _go_on(self, record: Onward) -> None:
        if record.part != self._part + 1:
            raise TraceError(f"trace {self._path} is damaged: part {record.part} follows part {self._part}")
        self.first = self.first or record
        try:
            following = part_of(self._path, record.part).open("rb")
        except FileNotFoundError:
            if not self._kept:
                super()._go_on(self.first)
            self.thinned = True
            return
        self._file.close()
        self._file, self._part = following, record.part

    def thin(self, *, done: bool = False) -> None:
        """Remove the parts after the first that were read to their end; ``done``: the current part was as well."""
        for part in range(self._thinned + 1, self._part + done):
            part_of(self._path, part).unlink(missing_ok=True)
            self._thinned = part


def part_of(path: Path, part: int) -> Path:
    """Return the path of part ``part`` of a trace."""
    return path.with_name(f"{path.name}.{part}") if part else path
