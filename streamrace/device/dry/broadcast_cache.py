"""Stores rank 0's broadcasts in a file, for dry runs as other ranks, since the ranks do not run together.

Frameworks compare values this way: DeepSpeed lets rank 0 broadcast a list of numbers, and each other rank compares it
with its own (``assert_ints_same_as_other_ranks``, deepspeed/runtime/zero/utils.py). Only known values are stored
(:mod:`streamrace.device.dry`). A broadcast is identified by its group's number, the same on all its ranks, and by its
own number in the group.
"""

from __future__ import annotations

from pathlib import Path


class BroadcastCache:
    """Broadcasts kept in ``file``. ``rank`` 0 writes the file as it broadcasts; any other rank reads it once."""

    def __init__(self, file: Path, rank: int) -> None:
        import msgpack

        self._packer = msgpack.Packer()
        self._writes = rank == 0
        self._file = file
        self._told: dict[tuple[int, int], list[bytes]] = {}
        if self._writes:
            file.write_bytes(b"")
        elif file.exists():
            with file.open("rb") as stored:
                self._told = {(group, number): sent for group, number, sent in msgpack.Unpacker(stored)}

    def tell(self, group: int, number: int, sent: list[bytes]) -> None:
        """Store a broadcast of these bytes, one item per tensor. Does nothing on other ranks than 0."""
        if self._writes:
            with self._file.open("ab") as stored:
                stored.write(self._packer.pack((group, number, sent)))

    def values(self, group: int, number: int) -> list[bytes] | None:
        """Return the bytes that were broadcast, or None if they are unknown."""
        return self._told.get((group, number))
