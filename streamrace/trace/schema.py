"""Defines the layout of a trace: the records' numbers in a file, and the device's words that encode each record.

The C++ parts include ``schema.h``, which ``python -m streamrace.trace`` generates from this file and from
:mod:`.records`. A new record is a class there, at the end of :data:`streamrace.trace.records.TraceRecord`; if the
device's C++ part writes it, also a :class:`WordKind` and a line of :data:`FIELDS`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from enum import IntEnum
from pathlib import Path
from typing import Any, NamedTuple, get_args

from streamrace.trace.records import (
    Access,
    Alloc,
    Export,
    Free,
    HostStep,
    HostWait,
    Record,
    RecordStream,
    Reuse,
    TraceRecord,
    Wait,
)

TYPES: tuple[type[Any], ...] = get_args(TraceRecord)
CODES = {kind: code for code, kind in enumerate(TYPES)}
"""The number of each record type, the first element of a record in a file."""
HOST = 65  # the device's number for the host's own accesses to pinned memory, which belong to no stream
HOW = ("synchronize", "read", "query", "asked", "copy", "met")
"""Values of ``how`` in :class:`HostWait` and :class:`HostStep`; the words hold the index."""
HEADER = Path(__file__).with_name("csrc") / "schema.h"


class WordKind(IntEnum):
    """Kinds of the device's words: each message is its kind, the number of words that follow, and those words."""

    ALLOC = 0
    FREE = 1
    RECORD_STREAM = 2
    LAUNCH = 3
    COLLECTIVE = 4
    RECORD = 5
    WAIT = 6
    HOST_WAIT = 7
    HOST_STEP = 8
    STREAM_NAME = 9
    LAYOUT = 10
    REUSE = 11
    EXPORT = 12
    MARK = 13
    DEFINE = 14
    CALL = 15
    INITIAL = 16
    UNREPEATABLE = 17


class Field(NamedTuple):
    """Decodes a field of a record from one word. ``pack``: the method of the C++ packer that writes the field."""

    pack: str
    make: Callable[[int, Callable[[int], str]], Any]


class Always(NamedTuple):
    """A field with a constant value, encoded in no word."""

    pack: str
    value: Any


_number = Field("number", lambda word, name: word)
_stream = Field("stream", lambda word, name: -1 if word == HOST else word)
_truth = Field("truth", lambda word, name: bool(word))
_how = Field("how", lambda word, name: HOW[word])
_name = Field("name", lambda word, name: name(word))

FIELDS: dict[WordKind, tuple[type[Any], tuple[Field | Always, ...]]] = {
    WordKind.ALLOC: (Alloc, (_number, _number, _stream, _number, Always('text("uint8")', "uint8"), _number)),
    WordKind.FREE: (Free, (_number, _number, Always("truth(false)", False), Always("truth(true)", True))),
    WordKind.RECORD_STREAM: (RecordStream, (_number, _number)),
    WordKind.RECORD: (Record, (_number, _number)),
    WordKind.WAIT: (Wait, (_number, _number, _number)),
    WordKind.HOST_WAIT: (HostWait, (_number, _how, _number, _number, _number)),
    WordKind.HOST_STEP: (HostStep, (_how, _number, _number, _number)),
    WordKind.REUSE: (Reuse, (_number, _number, _number, _number, _number, _number, _truth)),
    WordKind.EXPORT: (Export, (_number, _name, _number, _number)),
}
"""Records whose fields are words, in order. Launches and collectives also have accesses, and are not in this table."""


def record_of(kind: int, words: Sequence[int], name: Callable[[int], str]) -> Any:
    """Return the record that these words encode. ``name``: maps a number to a name. Raises KeyError: no layout."""
    made, fields = FIELDS[WordKind(kind)]
    left = iter(words)
    return made(*(field.value if isinstance(field, Always) else field.make(next(left), name) for field in fields))


def header() -> str:
    """Return the text of ``schema.h``."""
    return "\n".join(_lines()) + "\n"


def _lines() -> Iterator[str]:
    yield "// The layout of a trace. Made by `python -m streamrace.trace`, of records.py and schema.py."
    yield "#pragma once\n\n#include <cstdint>\n\nnamespace schema {\n"
    yield f"inline constexpr int64_t kHost = {HOST};"
    yield f"enum class How : int64_t {{ {', '.join(_constant(how) for how in HOW)} }};"
    yield f"inline constexpr const char* kHow[] = {{{', '.join(map(_quoted, HOW))}}};"
    yield f"enum class WordKind : int64_t {{\n  {', '.join(_constant(kind.name) for kind in WordKind)}\n}};"
    yield f"enum Code {{\n  {', '.join(f'k{one.__name__}' for one in TYPES)}, kCodes\n}};\n"
    both: tuple[type[Any], ...] = (Access, *TYPES)
    for one in both:
        yield f"struct {one.__name__} {{ enum : int {{ {', '.join(one._fields)}, fields }}; }};"
    yield "\n// Writes the record of these words; false where it takes more than its words."
    yield "template <typename To>\nbool pack(To& to, WordKind kind, const int64_t* words) {\n  switch (kind) {"
    for kind, (one, fields) in FIELDS.items():
        yield f"    case WordKind::{_constant(kind.name)}: {_packs(one, fields)}; return true;"
    yield "    default: return false;\n  }\n}\n\n}  // namespace schema"


def _packs(one: type[Any], fields: Sequence[Field | Always]) -> str:
    made, at = f"to.record(k{one.__name__}, {len(fields)})", 0
    for field in fields:
        if isinstance(field, Always):
            made += f".{field.pack}"
        else:
            made += f".{field.pack}(words[{at}])"
            at += 1
    return made


def _constant(name: str) -> str:
    return "k" + "".join(word.capitalize() for word in name.split("_"))


def _quoted(text: str) -> str:
    return f'"{text}"'
