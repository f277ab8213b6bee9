"""What comes from a file that anybody may have made: JSON and TOML within bounds, and text that a terminal can show.

All that reads such a file reads it here (tables: :mod:`streamrace.reports.data.frames`; traces:
:mod:`streamrace.trace`), so that what comes back can be walked, computed with and written again: it is nested no
deeper than :data:`DEEPEST`, its numbers are finite and fit into 64 bits, and its text is whole characters. Imports
nothing but Python's own.
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

DEEPEST = 64  # levels; all that a run or torch's profiler writes has fewer than 20
LARGEST = 64 << 20  # bytes of a file
_LARGEST_TOML = 1 << 20
_MOST = 2**64  # no whole number reaches it
_GZIP = b"\x1f\x8b"
_SHOWN = 40  # characters of a number
# The numbers that may be too large have one of these: only then is each looked at, which takes twice as long.
_LARGE = re.compile(r"\d{19}|\d[eE]\+?\d{3}")
_NEVER_SHOWN = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})  # of Unicode's categories


class Unreadable(ValueError):
    """A file does not hold what can be read: the end of a sentence that names the file."""


def contents(path: Path, *, largest: int = LARGEST, unzip: bool = False) -> bytes:
    """A file's bytes, at most ``largest``. ``unzip``: it may be gzipped. Raises OSError, :class:`Unreadable`."""
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
    """What a text in JSON says. Raises :class:`Unreadable`.

    ``finite`` False: numbers that JSON does not have (NaN, Infinity) are let through, as profilers write them.
    ``halves``: half characters are let through, which JSON can escape, and which stop whatever writes them as text;
    else they are their codes.
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
    _bounded(value)
    return _whole_characters(value) if not halves and "\\ud" in text.lower() else value


def read_json(
    path: Path, *, largest: int = LARGEST, finite: bool = True, halves: bool = False, unzip: bool = False
) -> Any:
    """What a file in JSON says: see :func:`contents` and :func:`json_of`. Raises OSError, :class:`Unreadable`."""
    return json_of(contents(path, largest=largest, unzip=unzip), finite=finite, halves=halves)


def read_toml(path: Path) -> dict[str, Any]:
    """What a file in TOML says. Raises OSError, :class:`Unreadable`."""
    raw = contents(path, largest=_LARGEST_TOML)
    try:
        table = tomllib.loads(raw.decode("utf-8"))
    except RecursionError:
        raise Unreadable("it is nested too deeply") from None
    except ValueError as error:  # tomllib's own are such, and Python's for thousands of digits
        raise Unreadable(f"it is not TOML: {error}") from None
    _bounded(table)
    _whole_numbers(table)
    return table


def visible(text: str, *, lines: bool = True) -> str:
    """``text`` with control, direction and half characters as codes: a name turns neither a page nor a terminal around.

    ``lines`` False: with the ends of lines as codes too, as a sentence is one line.
    """
    if text.isascii() and text.isprintable():
        return text
    kept = "\n\t" if lines else ""
    return "".join(
        one if one in kept or unicodedata.category(one) not in _NEVER_SHOWN else f"\\u{ord(one):04x}" for one in text
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
    """``text`` as it is quoted in a sentence."""
    line = " ".join(text.split())
    return line if len(line) <= longest else f"{line[:longest]} …"


def _bounded(value: Any) -> None:
    """Level by level, as what is too deep cannot be walked by calls."""
    level: list[Iterable[Any]] = [[value]]
    for _ in range(DEEPEST + 1):
        level = [
            inner.values() if type(inner) is dict else inner
            for one in level
            for inner in one
            if type(inner) is dict or type(inner) is list
        ]
        if not level:
            return
    raise Unreadable("it is nested too deeply")


def _whole_numbers(value: Any) -> None:
    """TOML's, which its reader does not hand over one by one."""
    if isinstance(value, (dict, list)):
        for one in value.values() if isinstance(value, dict) else value:
            _whole_numbers(one)
    elif type(value) is int and not -_MOST < value < _MOST:
        raise Unreadable("it holds a whole number of more than 64 bits")


def _whole_characters(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode("utf-8")
    if isinstance(value, list):
        return [_whole_characters(one) for one in value]
    if isinstance(value, dict):
        return {_whole_characters(key): _whole_characters(one) for key, one in value.items()}
    return value
