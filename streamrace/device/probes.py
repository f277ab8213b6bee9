"""Collects checksums of what the host read during a program, and of the program's memory at its end.

The trace has them as ``Probe`` and ``Probed`` (:mod:`streamrace.trace.records`), so two runs of one program can be
compared by their traces alone. ``csrc/probes.h`` defines what counts; reads of memory past torch (``numpy()`` of a
pinned tensor) are not seen.
"""

from __future__ import annotations

import ctypes
import itertools
import struct
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from streamrace.device import recording, tracing, work
from streamrace.device.library import functions
from streamrace.device.values import checksum
from streamrace.trace.records import Probe, Probed, TraceRecord

READ, FINAL = "read", "final"
_PART = 4096  # probes taken per call
_WORDS = 6
_INT, _DOUBLE = 1, 2  # csrc/probes.h, Number
_numbers = itertools.count(1 << 40)  # numbers of the program's own probes: above all operations and blocks


def begin() -> None:
    """Start collecting, and forget earlier probes. Has an effect while the device is traced."""
    functions().probes_begin()


def probe(
    kind: str, name: str, tensor: Tensor, look: Callable[[Tensor], object] | None = None, *, finally_: bool = False
) -> None:
    """Probe a value that training uses at this point of the current stream; with ``finally_``, after all streams.

    The trace gets its checksum, so that a replay can show the effect of another timing on it; ``look`` is called with
    the value at that moment. Takes no time and orders nothing.
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
    """Yield all probes of ``kinds`` (none: both) after the program's work: first reads, then memory by block.

    The number of a read's probe is that of the operation; the number of a block's probe is that of the block. The name
    of a read's probe is the number that the host read, if it read a single one.
    """
    for words in _taken():
        for at in range(0, len(words), _WORDS):
            kind, number, nbytes, checksum, value_kind, bits = words[at : at + _WORDS]
            kind_name = FINAL if kind else READ
            if kinds and kind_name not in kinds:
                continue
            block = number if kind else -1
            view = (block, "uint8", (nbytes,), (1,), 0, False, False)
            yield Probe(number, kind_name, _text(value_kind, bits), view, -1)
            yield Probed(number, checksum)


def _text(kind: int, bits: int) -> str:
    """Return the number that the host read as text; empty if it read none, or several."""
    if kind == _INT:
        return str(bits)
    return repr(struct.unpack("<d", struct.pack("<q", bits))[0]) if kind == _DOUBLE else ""


def _taken() -> Iterator[list[int]]:
    """Yield the probes' words, ``_WORDS`` per probe, in parts: a program may have read very often."""
    count = ctypes.c_int64()
    for begin in itertools.count(0, _PART):
        data = functions().probes_take(begin, _PART, ctypes.byref(count))
        words = data[: count.value]
        yield words
        if words[:1] != [0]:  # not reads: blocks come last
            return
