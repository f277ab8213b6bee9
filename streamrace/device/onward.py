"""What a trace says of its file: it is whole, goes on in another, cannot be replayed. A part of ``device.trace``."""

from __future__ import annotations

from typing import NamedTuple


class Onward(NamedTuple):
    """What follows stands in file ``part``, until it was judged (:mod:`streamrace.device.parts`).

    ``operations``: launches and collectives of this rank up to here; ``op``: the last one's number (-1: there is none).
    """

    part: int
    operations: int
    op: int

    def sentence(self) -> str:
        """What is there of the trace, and what to do: without a full stop."""
        return (
            f"it holds the first {self.operations:,} operations of its rank, and what came then was judged and not "
            "kept. Run the program again with 'streamrace check --keep-trace 0', which keeps all"
        )


class Seal(NamedTuple):
    """Behind :class:`streamrace.device.trace.End`: the SHA-256 of all bytes of the file before this record."""

    digest: bytes


class Unrepeatable(NamedTuple):
    """The recording cannot be replayed, and why."""

    reason: str
