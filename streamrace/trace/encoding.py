"""Encodes records as the bytes that a trace holds, and decodes them: msgpack, one array per record.

The device's C++ part writes the same bytes (``csrc/packed.cpp``), and the native engine reads them
(``detectors/native/csrc/reader.h``); both know the layout from ``schema.h``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from streamrace.trace.records import Begin, Frame, Onward, Stack, TraceError, TraceRecord
from streamrace.trace.schema import CODES, TYPES

_new = tuple.__new__  # a NamedTuple's own constructor takes four times as long
_PLAIN = {CODES[kind]: (1 + len(kind._fields), kind) for kind in TYPES if kind not in (Begin, Stack, Onward)}  # as is


class Packed(NamedTuple):
    """Encoded records. ``operations``: number of launches and collectives; ``op``: the last one's number (-1: none)."""

    data: bytes
    operations: int
    op: int


def packer() -> Any:
    """Return the packer of records; msgpack is imported with the first."""
    import msgpack

    return msgpack.Packer()


def unpacker() -> Any:
    """Return the unpacker of records."""
    import msgpack

    return msgpack.Unpacker(use_list=False, max_buffer_size=1 << 31, strict_map_key=False)


def encode(records: Iterable[TraceRecord]) -> bytes:
    """Return the records' bytes. Raises ValueError for a number of more than 64 bits, TypeError for no record."""
    codes, pack = CODES, packer().pack
    try:
        return b"".join([pack((codes[type(record)], *record)) for record in records])
    except OverflowError:
        raise ValueError("a field is no integer of 64 bits") from None


def decode(data: bytes, path: object = "") -> list[TraceRecord]:
    """Return the records of these bytes. Raises :class:`TraceError`, which names the trace ``path``."""
    from msgpack import UnpackException

    source = unpacker()
    source.feed(data)
    try:
        return [_record(row, path) for row in source]
    except (UnpackException, ValueError, TypeError) as error:
        raise damaged(path, error) from error


def damaged(path: object, error: object) -> TraceError:
    """Return the error for a file that holds something other than records."""
    return TraceError(f"trace {path} is damaged: {error}")


def _record(row: Any, path: object) -> TraceRecord:
    plain = _PLAIN.get(row[0]) if type(row) is tuple and row else None
    if plain is not None and len(row) == plain[0]:
        record: TraceRecord = _new(plain[1], row[1:])
        return record
    if type(row) is not tuple or not row or row[0] not in range(len(TYPES)):
        raise TraceError(f"{path} is not a trace of this project")
    record = TYPES[row[0]](*row[1:])
    if isinstance(record, Onward):  # the reader takes it from a part's end, and no other place is allowed
        raise damaged(path, "a part ends in the middle")
    return record._replace(frames=_frames(record.frames)) if isinstance(record, Stack) else record


def frames(data: bytes) -> tuple[Frame, ...]:
    """Return the frames of a stack from the bytes that encode them."""
    source = unpacker()
    source.feed(data)
    return _frames(source.unpack())


def _frames(rows: Iterable[Any]) -> tuple[Frame, ...]:
    return tuple(Frame(*row) for row in rows)


class Encoded(Sequence[TraceRecord]):
    """Consecutive records as a file holds them; decoded when somebody reads one.

    ``ends``: the position in ``data`` where each record ends; ``path``: the file.
    """

    __slots__ = ("_ends", "_path", "_records", "data")

    def __init__(self, data: bytes, ends: Sequence[int], path: object) -> None:
        self.data, self._ends, self._path = data, ends, path
        self._records: list[TraceRecord] | None = None

    def __len__(self) -> int:
        return len(self._ends)

    def __iter__(self) -> Iterator[TraceRecord]:
        return iter(self._decoded())

    def __getitem__(self, at: Any) -> Any:
        return self._decoded()[at]

    def _decoded(self) -> list[TraceRecord]:
        if self._records is None:
            self._records = decode(self.data, self._path)
        return self._records

    def replaced(self, by: Mapping[int, TraceRecord | None]) -> Encoded:
        """Return the records with others at the positions in ``by`` (None: left out). All others keep their bytes."""
        parts: list[bytes] = []
        ends: list[int] = []
        records: list[TraceRecord] = []
        begin = size = 0
        for at, (record, end) in enumerate(zip(self, self._ends, strict=True)):
            new = by.get(at, record)
            if new is not None:
                parts.append(self.data[begin:end] if new is record else encode([new]))
                size += len(parts[-1])
                ends.append(size)
                records.append(new)
            begin = end
        encoded = Encoded(b"".join(parts), ends, self._path)
        encoded._records = records
        return encoded


def replaced(records: Sequence[TraceRecord], by: Mapping[int, TraceRecord | None]) -> Sequence[TraceRecord]:
    """Return the records with others at the positions in ``by`` (None: left out)."""
    if not by:
        return records
    if isinstance(records, Encoded):
        return records.replaced(by)
    return [new for at, record in enumerate(records) if (new := by.get(at, record)) is not None]
