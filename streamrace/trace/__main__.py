"""``python -m streamrace.trace``: write ``schema.h`` anew, after a change of the records or their layouts."""

from __future__ import annotations

from streamrace.trace.schema import HEADER, header

if __name__ == "__main__":
    HEADER.write_text(header())
