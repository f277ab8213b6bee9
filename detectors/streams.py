"""Names streams for users, and identifies unnamed streams that are created at the same place."""

from __future__ import annotations

import re

from streamrace.trace.records import HOST_STREAM

_NUMBER = r"(?:cuda:\d+ )?stream \d+"  # with its device if the process uses several
_UNNAMED = re.compile(rf"{_NUMBER}(?:, made where ({_NUMBER}) was)?")


def stream_named(name: str, *, quoted: bool = True) -> str:
    """Return "the host" for the host, "stream 7" for an unnamed stream, and other names behind "stream", in quotes."""
    if name == HOST_STREAM:
        return "the host"
    return name if _UNNAMED.fullmatch(name) else f"stream {name!r}" if quoted else f"stream {name}"


def first_made(name: str) -> str:
    """Return the stream's name; if a loop creates it anew in each iteration, that of the first stream created there."""
    match = _UNNAMED.fullmatch(name)
    return (match and match[1]) or name
