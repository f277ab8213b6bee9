"""Checks that a trace is unchanged since it was closed: a recording that was changed is not replayed."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import get_args

from streamrace.trace.records import Seal, TraceRecord


def sealed(path: Path) -> bool:
    """Check whether the file is as :meth:`streamrace.trace.files.TraceWriter.close` left it. Raise OSError."""
    import msgpack

    code = get_args(TraceRecord).index(Seal)
    data = path.read_bytes()
    seal = len(msgpack.packb((code, bytes(hashlib.sha256().digest_size))))
    body, end = data[:-seal], data[-seal:]
    return bool(end == msgpack.packb((code, hashlib.sha256(body).digest())))
