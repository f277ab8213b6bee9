"""What a program came to see of its own work: checksums of what the host read, and of its memory at the end.

In the trace they are ``Probe`` and ``Probed`` (:mod:`streamrace.trace.records`), so two runs of one program can be
compared by their traces alone. What counts and what does not says ``csrc/probes.h``; what the host reads of memory
behind torch's back (``numpy()`` of a pinned tensor) is not seen.
"""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from streamrace.device import recording, tracing, work
from streamrace.device.library import functions
from streamrace.device.values import checksum
from streamrace.trace.records import Probe, Probed, TraceRecord

READ, FINAL = "read", "final"
_PART = 4096  # are taken together
_numbers = itertools.count(1 << 40)  # of the program's own probes: above all operations and blocks


def begin() -> None:
    """Look from now on, and forget what was seen before. Sees where the device is traced."""
    functions().probes_begin()


def probe(
    kind: str, name: str, tensor: Tensor, look: Callable[[Tensor], object] | None = None, *, finally_: bool = False
) -> None:
    """A value that training uses at this point of the current stream; with ``finally_``, when all streams are done.

    It stands in the trace with its checksum, so a replay can say what another timing does to it, and given to ``look``
    when its time has come. Takes no time and orders nothing.
    """
    with torch.no_grad():
        plain = tensor.detach()
        alias, block = work.alias(plain), work.place(plain)[0]
    number, stream = next(_numbers), -1 if finally_ else functions().current_stream()
    tracing.note(Probe(number, kind, name, recording.view(plain, block), stream))

    def see() -> None:
        tracing.note(Probed(number, checksum(alias)))
        if look is not None:
            look(alias)

    functions().observe(stream, work.ticket(see))


def collected(*kinds: str) -> Iterator[TraceRecord]:
    """All probes of ``kinds`` (none: both), once the program's work is done: what was read, then memory by block.

    Of what was read the probe's number is the operation's; of a block it is the block's.
    """
    for words in _taken():
        for at in range(0, len(words), 4):
            kind, number, nbytes, checksum = words[at : at + 4]
            what = FINAL if kind else READ
            if kinds and what not in kinds:
                continue
            block = number if kind else -1
            view = (block, "uint8", (nbytes,), (1,), 0, False, False)
            yield Probe(number, what, "", view, -1)
            yield Probed(number, checksum)


def _taken() -> Iterator[list[int]]:
    """In fours, a part at a time: a program may have read very often."""
    count = ctypes.c_int64()
    for begin in itertools.count(0, _PART):
        data = functions().probes_take(begin, _PART, ctypes.byref(count))
        words = data[: count.value]
        yield words
        if words[:1] != [0]:  # these were the blocks
            return
