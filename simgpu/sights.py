"""What a program came to see of its own work: checksums of what the host read, and of its memory at the end.

Told in the trace as :class:`repro.trace.Sight` and :class:`repro.trace.Seen`, so two runs of one program can be
compared by their traces alone. What counts and what does not says ``csrc/sights.h``; what the host reads of memory
behind torch's back (``numpy()`` of a pinned tensor) is not seen.
"""

from __future__ import annotations

import ctypes

from repro.trace import Seen, Sight, TraceRecord
from simgpu.library import functions

READ, FINAL = "read", "final"


def begin() -> None:
    """Look from now on, and forget what was seen before. Sees where the device is traced."""
    functions().sights_begin()


def told(*kinds: str) -> list[TraceRecord]:
    """All sights of ``kinds``, once the program's work is done: what was read, in the order of issue, then memory by
    block. No kind: both.

    Of what was read the sight's number is the operation's; of a block it is the block's.
    """
    count = ctypes.c_int64()
    data = functions().sights_take(ctypes.byref(count))
    words = data[: count.value]
    records: list[TraceRecord] = []
    for at in range(0, len(words), 4):
        kind, number, nbytes, checksum = words[at : at + 4]
        what = FINAL if kind else READ
        if kinds and what not in kinds:
            continue
        block = number if kind else -1
        view = (block, "uint8", (nbytes,), (1,), 0, False, False)
        records += [Sight(number, what, "", view, -1), Seen(number, checksum)]
    return records
