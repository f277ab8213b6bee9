"""Reads files from untrusted sources: JSON and TOML within bounds, and text made safe for a terminal.

All such files are read here (tables: :mod:`streamrace.reports.data.frames`; traces: :mod:`streamrace.trace`), so that
their values can be traversed, computed with and written again: nesting is at most :data:`DEEPEST`, numbers are finite
and fit into 64 bits, and text holds no lone surrogates. Imports only the standard library.
"""

from __future__ import annotations

import gzip
import json
import math
import re
import tomllib
import unicodedata
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

DEEPEST = 64  # levels; files written by a run or by torch's profiler have fewer than 20
LARGEST = 64 << 20  # bytes of a file
_LARGEST_TOML = 1 << 20
_MOST = 2**64  # exclusive bound on the magnitude of an integer
_GZIP = b"\x1f\x8b"
_SHOWN = 40  # characters of a quoted number
# Matches every number that may be too large: only then is each number checked, which doubles the time.
_LARGE = re.compile(r"\d{19}|\d[eE]\+?\d{3}")
_NEVER_SHOWN = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})  # Unicode categories


class Unreadable(ValueError):
    """A file whose content cannot be accepted; the message is the end of a sentence that names the file."""


def contents(path: Path, *, largest: int = LARGEST, unzip: bool = False) -> bytes:
    """Return a file's bytes, at most ``largest``. ``unzip``: accept gzip. Raises OSError, :class:`Unreadable`."""
    with path.open("rb") as file:
        raw = file.read(largest + 1)
    if unzip and raw.startswith(_GZIP):
        try:
            with gzip.open(path) as unzipped:
                raw = unzipped.read(largest + 1)
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise Unreadable(f"it is gzipped, and not whole: {error}") from None
    if len(raw) > largest:
        raise Unreadable(f"it has more than {largest >> 20} MiB")
    return raw


def json_of(raw: bytes, *, finite: bool = True, halves: bool = False) -> Any:
    """Parse JSON text. Raises :class:`Unreadable`.

    ``finite`` False: accept NaN and Infinity, which JSON lacks and profilers write. ``halves``: keep lone surrogates,
    which JSON can escape and which cannot be encoded as UTF-8; else they are replaced by their escape codes.
    """
    try:
        text = raw.decode("utf-8")
        large = _LARGE.search(text)
        value = json.loads(
            text,
            parse_int=_whole if large else None,
            parse_float=_finite if large and finite else None,
            parse_constant=_no_number if finite else None,
        )
    except Unreadable:
        raise
    except RecursionError:
        raise Unreadable("it is nested too deeply") from None
    except ValueError as error:
        raise Unreadable(f"it is cut off or is not JSON: {error}") from None
    bounded(value)
    return whole_characters(value) if not halves and "\\ud" in text.lower() else value


def read_json(
    path: Path, *, largest: int = LARGEST, finite: bool = True, halves: bool = False, unzip: bool = False
) -> Any:
    """Read a JSON file; see :func:`contents` and :func:`json_of`. Raises OSError, :class:`Unreadable`."""
    return json_of(contents(path, largest=largest, unzip=unzip), finite=finite, halves=halves)


def read_toml(path: Path) -> dict[str, Any]:
    """Read a TOML file. Raises OSError, :class:`Unreadable`."""
    raw = contents(path, largest=_LARGEST_TOML)
    try:
        table = tomllib.loads(raw.decode("utf-8"))
    except RecursionError:
        raise Unreadable("it is nested too deeply") from None
    except ValueError as error:  # includes TOMLDecodeError, and Python's own error for thousands of digits
        raise Unreadable(f"it is not TOML: {error}") from None
    bounded(table)
    _whole_numbers(table)
    return table


def visible(text: str, *, lines: bool = True) -> str:
    """Return ``text`` with control, direction and surrogate characters escaped, so that a name cannot disturb its page.

    ``lines`` False: escape line ends and tabs as well, for text within a sentence.
    """
    if text.isascii() and text.isprintable():
        return text
    allowed = "\n\t" if lines else ""
    return "".join(
        c if c in allowed or unicodedata.category(c) not in _NEVER_SHOWN else f"\\u{ord(c):04x}" for c in text
    )


def _no_number(constant: str) -> float:
    raise Unreadable(f"it holds {shortened(constant)}, which is no number there")


def _finite(digits: str) -> float:
    number = float(digits)
    return number if math.isfinite(number) else _no_number(digits)  # 1e999


def _whole(digits: str) -> int:
    if len(digits) > 20 or not -_MOST < (number := int(digits)) < _MOST:
        raise Unreadable(f"it holds {shortened(digits)}, which is too large a number")
    return number


def shortened(text: str, longest: int = _SHOWN) -> str:
    """Return ``text`` on one line, cut to ``longest`` characters, for quoting in a sentence."""
    line = " ".join(text.split())
    return line if len(line) <= longest else f"{line[:longest]} …"


def bounded(value: Any) -> None:
    """Check the nesting of lists and dicts, level by level: recursion would fail on input that is too deep."""
    level: list[Iterable[Any]] = [[value]]
    for _ in range(DEEPEST + 1):
        level = [
            inner.values() if type(inner) is dict else inner
            for container in level
            for inner in container
            if type(inner) is dict or type(inner) is list
        ]
        if not level:
            return
    raise Unreadable("it is nested too deeply")


def _whole_numbers(value: Any) -> None:
    """Check the integers of TOML after parsing, as tomllib has no hook for integers."""
    if isinstance(value, (dict, list)):
        for item in value.values() if isinstance(value, dict) else value:
            _whole_numbers(item)
    elif type(value) is int and not -_MOST < value < _MOST:
        raise Unreadable("it holds a whole number of more than 64 bits")


def whole_characters(value: Any) -> Any:
    """Return the value with lone surrogates in its texts as their escape codes."""
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode("utf-8")
    if isinstance(value, list):
        return [whole_characters(item) for item in value]
    if isinstance(value, dict):
        return {whole_characters(key): whole_characters(item) for key, item in value.items()}
    return value
