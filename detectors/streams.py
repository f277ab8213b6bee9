"""Streams that nobody named: what they are called in a sentence, and which of them are one."""

from __future__ import annotations

import re

from streamrace.trace.records import HOST_STREAM

_UNNAMED = re.compile(r"stream \d+(?:, made where (stream \d+) was)?")


def stream_named(name: str) -> str:
    """By its number alone where nobody named it; the host, which is no stream, as the host."""
    if name == HOST_STREAM:
        return "the host"
    return name if _UNNAMED.fullmatch(name) else f"stream {name!r}"


def first_made(name: str) -> str:
    """The stream itself; of one that a loop makes anew in each iteration the first that was made there."""
    found = _UNNAMED.fullmatch(name)
    return (found and found[1]) or name
