"""Defines the layout of a trace: the records' numbers in a file, and the device's words that encode each record.

The C++ parts include ``schema.h``, which ``python -m streamrace.trace`` generates from this file and from
:mod:`.records`: the device packs records by it, and the native engine reads them. A new record is a class there, at the
end of :data:`streamrace.trace.records.TraceRecord`; if the device's C++ part packs it, also a :class:`WordKind` and a
line of :data:`FIELDS`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import IntEnum
from pathlib import Path
from typing import Any, get_args, get_type_hints

from streamrace.trace.graph_records import Dangling, GraphPart, PoolPart, Replay
from streamrace.trace.records import (
    Access,
    Alloc,
    Collective,
    Export,
    Free,
    HostStep,
    HostWait,
    Launch,
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
HOW = ("synchronize", "read", "query", "asked", "copy", "met", "called")
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
    GROUP = 18
    POOL_PART = 19
    GRAPH_PART = 20
    REPLAY = 21
    DANGLING = 22


_WORK = "number number name accesses accesses number number number number"  # a collective begins as a launch does
FIELDS: dict[WordKind, tuple[type[Any], str]] = {
    WordKind.ALLOC: (Alloc, 'number number stream number text("uint8") number'),
    WordKind.FREE: (Free, "number number truth(false) truth(true)"),
    WordKind.RECORD_STREAM: (RecordStream, "number number"),
    WordKind.LAUNCH: (Launch, f"{_WORK} number"),
    WordKind.COLLECTIVE: (Collective, f"{_WORK} number number number number number real name name"),
    WordKind.RECORD: (Record, "number number"),
    WordKind.WAIT: (Wait, "number number number"),
    WordKind.HOST_WAIT: (HostWait, "number how number number number"),
    WordKind.HOST_STEP: (HostStep, "how number number number number"),
    WordKind.REUSE: (Reuse, "number number number number number number truth"),
    WordKind.EXPORT: (Export, "number name number number"),
    WordKind.POOL_PART: (PoolPart, "number number number number number"),
    WordKind.GRAPH_PART: (GraphPart, "number number number"),
    WordKind.REPLAY: (Replay, "number number number number"),
    WordKind.DANGLING: (Dangling, "number name number number number number number truth"),
}
"""Records that the C++ part packs: how each field is packed from its word, by methods of ``csrc/packed.cpp``.

A field in parentheses is constant, and has no word. The word of ``accesses`` is their number; four words of each stand
behind the words of all fields: block, lo, hi and the layout's number.
"""

_READ = {int: ("int64_t", "integer"), str: ("std::string_view", "text"), bool: ("bool", "truth")}
_ANY = ("std::string_view", "raw")  # any other type: the bytes that encode the field


def header() -> str:
    """Return the text of ``schema.h``."""
    return "\n".join(_lines()) + "\n"


def _lines() -> Iterator[str]:
    yield "// The layout of a trace. Made by `python -m streamrace.trace`, of records.py and schema.py."
    yield "#pragma once\n\n#include <cstddef>\n#include <cstdint>\n#include <string_view>\n\nnamespace schema {\n"
    yield f"inline constexpr int64_t kHost = {HOST};"
    yield f"enum class How : int64_t {{ {', '.join(_constant(how) for how in HOW)} }};"
    yield f"inline constexpr const char* kHow[] = {{{', '.join(map(_quoted, HOW))}}};"
    yield f"enum class WordKind : int64_t {{\n  {', '.join(_constant(kind.name) for kind in WordKind)}\n}};"
    yield f"enum Code {{\n  {', '.join(f'k{kind.__name__}' for kind in TYPES)}, kCodes\n}};\n"
    yield "// The positions of each record's fields, their values, and what reads these from a file's bytes."
    both: tuple[type[Any], ...] = (Access, *TYPES)
    for record in both:
        yield _record(record)
    yield "\n// Writes the record of these words; false if it takes more than its words."
    yield "template <typename To>\nbool pack(To& to, WordKind kind, const int64_t* words) {\n  switch (kind) {"
    for kind, (record, fields) in FIELDS.items():
        yield f"    case WordKind::{_constant(kind.name)}: {_packs(record, fields.split())}; return true;"
    yield "    default: return false;\n  }\n}\n\n}  // namespace schema"


def _record(record: type[Any]) -> str:
    types = get_type_hints(record)
    values, reads = [], []
    for at, name in enumerate(record._fields):
        kind, read = _READ.get(types[name], _ANY)
        default = record._field_defaults.get(name)
        initial = "" if default is None or read == "raw" else f" = {_literal(default)}"
        values.append(f"{kind} {name}{initial};")
        optional = f"if (count > {at}) " if name in record._field_defaults else ""
        reads.append(f"{optional}it.{name} = from.{read}();")
    least = len(record._fields) - len(record._field_defaults)
    return (
        f"struct {record.__name__} {{ enum : int {{ {', '.join(record._fields)}, fields }}; "
        f"struct Values {{ {' '.join(values)} }}; "
        "template <typename From> static Values read(From& from, size_t count) { "
        f"from.has(count, {least}, fields); Values it; {' '.join(reads)} return it; }} }};"
    )


def _packs(record: type[Any], fields: Sequence[str]) -> str:
    words = sum("(" not in field for field in fields)
    calls, at = f"to.record(k{record.__name__}, {len(fields)}, words + {words})", 0
    for field in fields:
        calls += f".{field}" if "(" in field else f".{field}(words[{at}])"
        at += "(" not in field
    return calls


def _constant(name: str) -> str:
    return "k" + "".join(word.capitalize() for word in name.split("_"))


def _literal(value: str | int) -> str:
    return _quoted(value) if isinstance(value, str) else str(value).lower()


def _quoted(text: str) -> str:
    return f'"{text}"'
