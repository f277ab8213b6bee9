"""What the C++ part packs for a file is, byte by byte, what the packer of Python makes of the same records."""

from __future__ import annotations

import ctypes
import random
from typing import Any

import torch

from streamrace.device import library, tracing
from streamrace.device.tracing import Tracer
from streamrace.trace.encoding import Packed, decode, encode
from streamrace.trace.graph_records import Dangling, GraphPart, PoolPart, Replay
from streamrace.trace.records import Alloc, Collective, Export, Free, HostStep, HostWait, Launch, Record, Reuse, Wait
from streamrace.trace.schema import CODES, FIELDS, HOST, WordKind

PACKED = {
    "Launch", "Alloc", "Free", "Reuse", "RecordStream", "Record", "Wait", "HostWait", "HostStep", "Export",
}  # fmt: skip
NAMED = 0  # a name's number


def packed(*messages: tuple[WordKind, list[int]]) -> Packed:
    """What is packed of these words of the device."""
    words = [word for kind, those in messages for word in (kind, len(those), *those)]
    at, made = ctypes.c_int64(), (ctypes.c_int64 * 3)()
    data = library.functions().trace_packed((ctypes.c_int64 * len(words))(*words), len(words), ctypes.byref(at), made)
    assert at.value == len(words)
    return Packed(ctypes.string_at(data, made[0]), *made[1:])


def name() -> str:
    torch.ones(1, device="cuda")  # there is a kernel's name
    return str(library.functions().kernel_name(NAMED).decode())


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
    written: list[Any] = []
    tracer = Tracer(written.extend, packed=True)
    everything()
    tracer.close()
    stretches = [one for one in written if isinstance(one, Packed)]
    assert stretches
    kinds = set()
    for one in stretches:
        records = decode(one.data)
        assert encode(records) == one.data
        launches = [record.op for record in records if isinstance(record, Launch)]
        assert one[1:] == (len(launches), launches[-1] if launches else -1)
        kinds |= {type(record).__name__ for record in records}
    assert kinds == PACKED


def test_words_become_records() -> None:
    """Of each kind: which word stands for which field."""
    text = name()
    cases: list[tuple[WordKind, list[int], Any]] = [
        (WordKind.ALLOC, [1, 64, HOST, 7, 2], Alloc(1, 64, -1, 7, "uint8", 2)),
        (WordKind.FREE, [1, 9], Free(1, 9, poisoned=False, quiet=True)),
        (WordKind.RECORD, [3, 2], Record(3, 2)),
        (WordKind.WAIT, [2, 3, 4], Wait(2, 3, 4)),
        (WordKind.HOST_WAIT, [5, 1, 3, 9, 8], HostWait(5, "read", 3, 9, 8)),
        (WordKind.HOST_STEP, [3, 9, -1, 5, 0], HostStep("asked", 9, marker=5)),
        (WordKind.HOST_STEP, [6, 9, -1, -1, 7], HostStep("called", 9, calls=7)),
        (WordKind.REUSE, [1, 2, 3, 4, 5, 6, 1], Reuse(1, 2, 3, 4, 5, 6, last=True)),
        (WordKind.EXPORT, [1, NAMED, 2, 3], Export(1, text, 2, 3)),
        (WordKind.POOL_PART, [1, 2, 3, 4, 5], PoolPart(1, 2, 3, 4, 5)),
        (WordKind.GRAPH_PART, [1, 2, 3], GraphPart(1, 2, 3)),
        (WordKind.REPLAY, [1, 2, 3, 4], Replay(1, 2, 3, 4)),
        (WordKind.DANGLING, [1, NAMED, 2, 3, 4, 5, -1, 1], Dangling(1, text, 2, 3, 4, 5, -1, writes=True)),
        (
            WordKind.LAUNCH,
            [5, 1, NAMED, 1, 2, 6, 7, 8, 9, 10, 1, 0, 8, 0, 2, 8, 16, 0, 3, 16, 24, 0],
            Launch(5, 1, text, ((1, 0, 8, None),), ((2, 8, 16, None), (3, 16, 24, None)), 6, 7, 8, 9, 10),  # type: ignore[arg-type]
        ),
        (
            WordKind.COLLECTIVE,
            [5, 1, NAMED, 1, 0, 6, 7, 8, 9, 20, 21, 22, 23, 24, 0x4004000000000000, NAMED, NAMED, 1, 0, 8, 0],
            Collective(5, 1, text, ((1, 0, 8, None),), (), 6, 7, 8, 9, 20, 21, 22, 23, 24, 2.5, text, text),  # type: ignore[arg-type]
        ),
    ]
    for kind, words, record in cases:
        assert packed((kind, words)).data == encode([record])
    assert FIELDS.keys() - {kind for kind, *_ in cases} == {WordKind.RECORD_STREAM}
    assert packed((WordKind.RECORD_STREAM, [1, 2])).data == bytes(
        (0x93, CODES[FIELDS[WordKind.RECORD_STREAM][0]], 1, 2)
    )


def test_numbers_of_every_size() -> None:
    """Where the packing of a number changes, and beside it."""
    edges = [sign * (1 << bits) + by for bits in range(63) for sign in (1, -1) for by in (-1, 0, 1)]
    random.Random(0).shuffle(edges)
    edges += [(1 << 63) - 1, -(1 << 63)]
    edges += [0] * (-len(edges) % 7)
    rows = [edges[at : at + 7] for at in range(0, len(edges), 7)]
    found = packed(*((WordKind.REUSE, row) for row in rows))
    assert found == (encode([Reuse(*row[:6], last=bool(row[6])) for row in rows]), 0, -1)


def test_a_launch_of_many_accesses() -> None:
    text = name()
    for count in (15, 16, 17, 70_000):
        accesses = [word for at in range(count) for word in (at, 0, 8, 0)]
        found = packed((WordKind.LAUNCH, [5, 0, NAMED, count, 0, 1, 2, 3, 4, 5, *accesses]))
        reads: Any = tuple((at, 0, 8, None) for at in range(count))
        assert found == (encode([Launch(5, 0, text, reads, (), 1, 2, 3, 4, 5)]), 1, 5)
