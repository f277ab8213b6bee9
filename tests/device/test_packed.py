"""What the C++ part packs for a file is, byte by byte, what records that Python makes of the same words would be."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import msgpack
import torch

from streamrace.device import library, tracing
from streamrace.device.tracing import Tracer
from streamrace.trace.files import Packed
from streamrace.trace.records import Launch
from streamrace.trace.schema import CODES

PACKED = {
    "Launch", "Alloc", "Free", "Reuse", "RecordStream", "Record", "Wait", "HostWait", "HostStep", "Export",
}  # fmt: skip


class Twice(Tracer):
    """Packs, and makes records of what was packed. ``kinds``: of these."""

    def __init__(self) -> None:
        self.made: list[Any] = []
        self.written: list[Any] = []
        self.kinds: set[str] = set()
        super().__init__(self.written.extend, packed=True)

    def _pack(self, data: Any, count: int, records: list[Any]) -> None:
        f = library.functions()
        plain = f.trace_packed

        def packed(words: Any, many: int, at: Any, made: Any) -> Any:
            begin = at._obj.value
            found = plain(words, many, at, made)
            these: list[Any] = []
            self._make(data[begin : at._obj.value], these)
            launches = [one.op for one in these if isinstance(one, Launch)]
            data_of = b"".join(msgpack.packb((CODES[type(one)], *one)) for one in these)
            self.made.append(Packed(data_of, len(launches), launches[-1] if launches else -1))
            self.kinds |= {type(one).__name__ for one in these}
            return found

        f.trace_packed = packed
        try:
            super()._pack(data, count, records)
        finally:
            f.trace_packed = plain


def same(program: Callable[[], object]) -> set[str]:
    """The kinds of records that were packed, each as it would have been made."""
    tracer = Twice()
    program()
    tracer.close()
    packed = [one for one in tracer.written if isinstance(one, Packed)]
    assert packed == [one for one in tracer.made if one.data] != []
    return tracer.kinds


def everything() -> None:
    side = torch.cuda.Stream()
    a = torch.ones(64, 64, device="cuda")
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        b = a[::2, 1:60:3].clone()  # with a layout
        a.record_stream(side)
    del a
    torch.cuda.synchronize()
    c = torch.empty(64, 64, device="cuda")  # of the same memory
    torch.stack([b.flatten() for _ in range(40)])  # more accesses than a short array has
    host = torch.ones(8).pin_memory()
    c[0, :8].copy_(host, non_blocking=True)
    event = torch.cuda.Event()
    event.record(side)
    while not event.query():
        pass
    assert host.numpy().sum() + c[0, 0].item() > 8
    tracing.name_stream(side.stream_id, "side")
    torch.cuda.synchronize()


def test_a_program_that_does_everything() -> None:
    kinds = same(everything)
    assert kinds == PACKED


def test_numbers_of_every_size() -> None:
    """Where the packing of a number changes, and beside it."""
    edges = [sign * (1 << bits) + by for bits in range(63) for sign in (1, -1) for by in (-1, 0, 1)]
    random.Random(0).shuffle(edges)
    edges += [(1 << 63) - 1, -(1 << 63)]
    edges += [0] * (-len(edges) % 7)
    words = [word for at in range(0, len(edges), 7) for word in (11, 7, *edges[at : at + 7])]  # Reuse
    tracer = Twice()
    try:
        got: list[Any] = []
        tracer._pack((library.c_int64 * len(words))(*words), len(words), got)
        assert got == tracer.made and got[0].operations == 0 and tracer.kinds == {"Reuse"}
    finally:
        tracer.close()


def test_a_launch_of_many_accesses() -> None:
    torch.ones(1, device="cuda")  # there is a kernel's name
    for count in (15, 16, 17, 70_000):
        accesses = [word for at in range(count) for word in (at, 0, 8, 0)]
        words = [3, 10 + len(accesses), 5, 0, 0, 1, 2, 3, 4, 5, count, 0, *accesses]
        tracer = Twice()
        try:
            got: list[Any] = []
            tracer._pack((library.c_int64 * len(words))(*words), len(words), got)
            assert got == tracer.made and got[0][1:] == (1, 5)
        finally:
            tracer.close()
