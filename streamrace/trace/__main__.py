"""Regenerates ``schema.h`` (``python -m streamrace.trace``), after a change of the records or their layouts."""

from __future__ import annotations

from streamrace.trace.schema import HEADER, header

if __name__ == "__main__":
    HEADER.write_text(header())
