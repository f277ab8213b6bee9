"""How long the happens-before detector takes for an operation, and whether that grows with the trace.

Run: ``python -m benchmarks.detector``. The claim: at most a microsecond per launch with two reads and a write (15 in
the engine that is to be read), and as much for the ten-millionth as for the first thousand.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from itertools import islice, takewhile
from typing import get_args

from detectors import RaceDetector
from detectors.engines import Engine
from simgpu.trace import (
    Access,
    Alloc,
    Frame,
    Free,
    HostWait,
    Label,
    Launch,
    Phase,
    Record,
    RecordStream,
    Stack,
    StreamName,
    TraceRecord,
    Wait,
    begin,
)

STREAMS = ("compute", "all-gather", "reduce", "copy")
LIVE = 400  # blocks at a time
WARM_UP = 1000  # launches
FLAT = 256 * 4096  # bytes of a flat buffer that is touched in parts, as a parameter partition is


def synthetic(ops: int, *, seed: int = 0) -> Iterator[TraceRecord]:
    """``ops`` launches of a training-like run without races; about four other records to a launch."""
    draw = random.Random(seed)
    yield begin(0, 1)
    for number, name in enumerate(STREAMS):
        yield StreamName(number, name)
    for stack in range(100):
        yield Stack(stack, (Frame("model.py", stack, "forward"), Frame("train.py", 1, "main")))
    yield Alloc(0, FLAT, 0, 0)
    live: list[int] = []
    block = marker = stream = 0
    for op in range(ops):
        if op % 1000 == 0:  # a step: the host reads the loss
            yield Phase(op // 1000, 0, "forward")
            for number in range(len(STREAMS)):
                yield Record(marker, number)
                yield HostWait(marker, "read", 0, op)
                marker += 1
        if op % 4 == 0:  # the next piece of work is on a stream that waits for the others
            stream = draw.randrange(len(STREAMS))
            for number in range(len(STREAMS)):
                if number != stream:
                    yield Record(marker, number)
                    yield Wait(stream, marker, 1)
                    marker += 1
        if op % 2 == 0:
            block += 1
            yield Alloc(block, 4096, stream, op)
            yield Label(block, 0, 4096, "gathered", f"layer.{op % 100}")
            live.append(block)
        part = 4096 * draw.randrange(FLAT // 4096)
        reads = (Access(draw.choice(live[-50:]), 0, 4096), Access(0, part, part + 4096))
        writes = (Access(block, 0, 4096) if op % 3 else Access(0, part, part + 4096),)
        yield Launch(op, stream, "aten::add_", reads, writes, op % 100, 10 * op, 10 * op, 10 * op + 9)
        if len(live) > LIVE:
            old = live.pop(0)
            yield RecordStream(old, stream)
            if old % 4:  # the others are reused after the host has waited: no race either way
                yield RecordStream(old, 0)
            yield Free(old, op)


def measure(ops: int, engine: Engine = "native") -> float:
    """Seconds per launch, with its share of the other records (about four for each launch).

    Time is taken once as many blocks live as ever will, and not while the records are made.
    """
    detector, trace, spent = RaceDetector(engine=engine), synthetic(WARM_UP + ops), 0.0
    detector.feed(0, takewhile(lambda record: not isinstance(record, Launch) or record.op < WARM_UP, trace))
    while batch := list(islice(trace, 2000)):
        start = time.perf_counter()
        detector.feed(0, batch)
        spent += time.perf_counter() - start
    detector.finish()
    return spent / ops


if __name__ == "__main__":
    for engine in get_args(Engine):
        for ops in (1_000, 100_000):
            print(f"{engine:>6}, {ops:>7} launches: {measure(ops, engine) * 1e6:5.2f} microseconds each")
