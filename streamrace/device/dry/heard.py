"""What rank 0 broadcasts, for dry runs as other ranks: they are not there together, so it is written down.

Frameworks compare notes so: DeepSpeed lets rank 0 broadcast a list of numbers, and each other rank holds its own
against it (``assert_ints_same_as_other_ranks``, deepspeed/runtime/zero/utils.py). Only values that are known are told
(:mod:`streamrace.device.dry`); a broadcast is named by its group, whose number all its ranks agree on, and by its
number there.
"""

from __future__ import annotations

from pathlib import Path


class Heard:
    """Kept in ``file``. ``rank`` 0 writes it, from the first broadcast on; any other reads what stands there."""

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
        """This rank broadcasts these bytes, one for each tensor."""
        if self._writes:
            with self._file.open("ab") as stored:
                stored.write(self._packer.pack((group, number, sent)))

    def told(self, group: int, number: int) -> list[bytes] | None:
        """What was broadcast. None: that is not known."""
        return self._told.get((group, number))
