"""How a stream is named in a sentence."""

from __future__ import annotations

import re

from streamrace.device.trace import HOST_STREAM


def stream_named(name: str) -> str:
    """By its number alone where nobody named it; the host, which is no stream, as the host."""
    if name == HOST_STREAM:
        return "the host"
    return name if re.fullmatch(r"stream \d+", name) else f"stream {name!r}"
