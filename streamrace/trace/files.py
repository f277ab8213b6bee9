"""Writes and reads traces: one file per rank."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from streamrace.trace.records import (
    FORMAT,
    READ,
    VERSION,
    Begin,
    Frame,
    Onward,
    Seal,
    Stack,
    TraceError,
    TraceRecord,
    begin,
)
from streamrace.trace.schema import CODES, TYPES

_new = tuple.__new__  # a NamedTuple's own constructor takes four times as long
_PLAIN = {CODES[one]: (1 + len(one._fields), one) for one in TYPES if one not in (Begin, Stack, Onward)}  # as is


class Packed(NamedTuple):
    """Encoded records. ``operations``: number of launches; ``op``: the last launch's number (-1: none).

    Encoded by the C++ part from its words (``csrc/packed.cpp``), byte for byte as the trace writer encodes records.
    """

    data: bytes
    operations: int
    op: int


def file_of(folder: Path, rank: int) -> Path:
    """Return the path of ``rank``'s trace in a run's trace folder."""
    return folder / f"rank{rank}.trace"


class TraceWriter:
    """Appends records to one rank's file."""

    def __init__(self, path: Path, *, rank: int, world: int, info: dict[str, Any]) -> None:
        import msgpack

        self._file: BinaryIO = path.open("wb")
        self._packer = msgpack.Packer()
        self._digest = hashlib.sha256()
        self.write([begin(rank, world, info)])

    def write(self, records: Iterable[TraceRecord | Packed]) -> None:
        """Write the records and flush them to the operating system, so that another process can read along."""
        pack, left = self._packer.pack, iter(records)
        while batch := [*islice(left, 4096)]:  # bounds memory: there may be very many records
            data = b"".join([one.data if isinstance(one, Packed) else pack((CODES[type(one)], *one)) for one in batch])
            self._digest.update(data)
            self._file.write(data)
        self._file.flush()

    def close(self) -> None:
        """Seal and close the file, so that :func:`sealed` can detect later additions and changes."""
        if not self._file.closed:
            self.write([Seal(self._digest.digest())])
            self._file.close()


class TraceReader:
    """Reads one rank's file, also while it is written (parts: :mod:`.parts`). Raises :class:`TraceError`."""

    def __init__(self, path: Path) -> None:
        import msgpack

        self._path = path
        self._damage: tuple[type[Exception], ...] = (msgpack.UnpackException, ValueError, TypeError)
        try:
            self._file: BinaryIO = path.open("rb")
        except OSError as error:
            raise TraceError(f"cannot read trace {path}: {error.strerror}") from error
        self._unpacker = msgpack.Unpacker(use_list=False, max_buffer_size=1 << 31, strict_map_key=False)
        self._begun = False

    def read(self) -> Iterator[TraceRecord]:
        """Yield the records written since the last call."""
        while chunk := self._file.read(1 << 18):
            self._unpacker.feed(chunk)
            try:
                for row in self._unpacker:
                    plain = _PLAIN.get(row[0]) if self._begun and type(row) is tuple and row else None
                    if plain is not None and len(row) == plain[0]:
                        yield _new(plain[1], row[1:])
                    elif isinstance(record := self._record(row), Onward):
                        self._go_on(record)
                    else:
                        yield record
            except self._damage as error:
                if isinstance(error, TraceError):
                    raise
                raise TraceError(f"trace {self._path} is damaged: {error}") from error

    def _record(self, row: Any) -> TraceRecord:
        if not isinstance(row, tuple) or not row or row[0] not in range(len(TYPES)):
            raise TraceError(f"{self._path} is not a trace of this project")
        record: TraceRecord = TYPES[row[0]](*row[1:])
        if isinstance(record, Stack):
            record = record._replace(frames=tuple(Frame(*frame) for frame in record.frames))
        if not self._begun:
            if not isinstance(record, Begin) or record.format != FORMAT:
                raise TraceError(f"{self._path} is not a trace of this project")
            if record.version not in READ:
                raise TraceError(
                    f"trace {self._path} has format version {record.version}, this release reads up to {VERSION}: "
                    "run the scenario again, or use the release that wrote it"
                )
            self._begun = True
        return record

    def _go_on(self, record: Onward) -> None:
        """Raise :class:`TraceError`: the file ends here, and the trace went on."""
        raise TraceError(f"trace {self._path} was thinned: {record.sentence()}")

    def close(self) -> None:
        self._file.close()
