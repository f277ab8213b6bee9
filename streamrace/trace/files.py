"""Writes and reads traces: one file per rank."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

from streamrace.trace.encoding import Encoded, Packed, damaged, packer, unpacker
from streamrace.trace.records import FORMAT, READ, VERSION, Begin, Onward, Seal, TraceError, TraceRecord, begin
from streamrace.trace.schema import CODES

_MOST = 64  # records read at a time
_ONWARD = bytes((0x90 + 1 + len(Onward._fields), CODES[Onward]))  # how this record's bytes begin


def file_of(folder: Path, rank: int) -> Path:
    """Return the path of ``rank``'s trace in a run's trace folder."""
    return folder / f"rank{rank}.trace"


class TraceWriter:
    """Appends records to one rank's file."""

    def __init__(self, path: Path, *, rank: int, world: int, info: dict[str, Any]) -> None:
        self._file: BinaryIO = path.open("wb")
        self._packer = packer()
        self._digest = hashlib.sha256()
        self.write([begin(rank, world, info)])

    def write(self, records: Iterable[TraceRecord | Packed]) -> None:
        """Write the records and flush them to the operating system, so that another process can read along."""
        pack, remaining = self._packer.pack, iter(records)
        while batch := [*islice(remaining, 4096)]:  # bounds memory: there may be very many records
            data = b"".join([r.data if isinstance(r, Packed) else pack((CODES[type(r)], *r)) for r in batch])
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
        self._path = path
        try:
            self._file: BinaryIO = path.open("rb")
        except OSError as error:
            raise TraceError(f"cannot read trace {path}: {error.strerror}") from error
        self._unpacker = unpacker()
        self._begun = False
        self._bytes = b""  # read and not yet passed on, from `_at` on; `_passed`: bytes of all that was passed on
        self._at = self._passed = 0
        self._rest: Iterator[TraceRecord] = iter(())  # of the last batch
        self._onward: Onward | None = None  # the end of the part, if that is what comes next
        self._problem: Exception | None = None

    def read(self) -> Iterator[TraceRecord]:
        """Yield the records written since the last call."""
        yield from self._rest
        while (batch := self.some()) is not None:
            self._rest = iter(batch)
            yield from self._rest

    def some(self) -> Encoded | None:
        """Return the next few records, not decoded; None if no more exist for now."""
        while True:
            if self._onward is not None:
                record, self._onward = self._onward, None
                self._go_on(record)
            if ends := self._ends():
                begin, self._at = self._at, self._at + ends[-1]
                self._passed += ends[-1]
                if batch := self._batch(self._bytes[begin : self._at], ends):
                    return batch
                continue
            chunk = self._file.read(1 << 18)
            if not chunk:
                return None
            self._bytes, self._at = self._bytes[self._at :] + chunk, 0
            self._unpacker.feed(chunk)

    def _ends(self) -> list[int]:
        """Find the next whole records among the bytes that were read; return where each ends."""
        from msgpack import OutOfData, UnpackException

        if self._problem is not None:
            raise damaged(self._path, self._problem) from self._problem
        skip, tell, passed, ends = self._unpacker.skip, self._unpacker.tell, self._passed, []
        try:
            for _ in range(_MOST):
                skip()
                ends.append(tell() - passed)
        except OutOfData:
            pass
        except (UnpackException, ValueError) as error:
            self._problem = error
            return ends or self._ends()
        return ends

    def _batch(self, data: bytes, ends: list[int]) -> Encoded:
        last = ends[-2] if len(ends) > 1 else 0
        batch = Encoded(data, ends, self._path)
        if data.startswith(_ONWARD, last):
            source = unpacker()
            source.feed(data[last:])
            self._onward = Onward(*source.unpack()[1:])
            batch = Encoded(data[:last], ends[:-1], self._path)
        if not self._begun:
            self._check_begin(batch[0] if batch else self._onward)
            self._begun = True
        return batch

    def _check_begin(self, record: TraceRecord | None) -> None:
        if not isinstance(record, Begin) or record.format != FORMAT:
            raise TraceError(f"{self._path} is not a trace of this project")
        if record.version not in READ:
            raise TraceError(
                f"trace {self._path} has format version {record.version}, this release reads up to {VERSION}: "
                "run the scenario again, or use the release that wrote it"
            )

    def _go_on(self, record: Onward) -> None:
        """Raise :class:`TraceError`: the file ends here, and the trace went on."""
        raise TraceError(f"trace {self._path} was thinned: {record.sentence()}")

    def close(self) -> None:
        self._file.close()
