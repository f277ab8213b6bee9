"""How long the happens-before detector takes for an operation, and whether that grows with the trace.

Run: ``python -m benchmarks.detector``. The claim: at most a microsecond per launch with two reads and a write (15 in
the engine that is to be read), and as much for the ten-millionth as for the first thousand.

In instructions, which no other work disturbs, that is :mod:`benchmarks.counted`. By it a launch of this sequence misses
a cache of 1 MiB 25.1 times among the launches from 2,000 to 40,000, and as often among those from 41,000 to 120,000;
22.9 times among those from 1,000 to 2,000, as less of the buffer is remembered, in memory that is new.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from itertools import islice
from statistics import fmean
from typing import NamedTuple, get_args

from streamrace.detectors import RaceDetector
from streamrace.detectors.engines import Engine
from streamrace.device.trace import (
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

GROWTH = 1.0  # times: flat
STREAMS = ("compute", "all-gather", "reduce", "copy")
LIVE = 400  # blocks at a time
WARM_UP = 4000  # launches: after the first thousand a fourth of the flat buffer's parts were never written
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


class Fed:
    """A detector and what it is fed. Time is taken once as many blocks live as ever will, and not while the records are
    made; it is processor time, as other work of the machine is not meant.
    """

    def __init__(self, ops: int, engine: Engine = "native") -> None:
        self._detector, self._trace = RaceDetector(engine=engine), synthetic(WARM_UP + ops)
        self._fed = WARM_UP
        self._feed_until(WARM_UP)

    def on(self, ops: int) -> float:
        """Seconds for a launch, with its share of the other records (about four for each launch), of so many more."""
        self._fed += ops
        return self._feed_until(self._fed) / ops

    def finish(self) -> None:
        self._detector.finish()

    def _feed_until(self, op: int) -> float:
        spent, some = 0.0, self._until(op)
        while batch := list(islice(some, 2000)):
            start = time.process_time()
            self._detector.feed(0, batch)
            spent += time.process_time() - start
        return spent

    def _until(self, op: int) -> Iterator[TraceRecord]:
        for record in self._trace:
            yield record
            if isinstance(record, Launch) and record.op == op - 1:
                return


def measure(ops: int, engine: Engine = "native") -> float:
    """Seconds for a launch of a run of so many."""
    fed = Fed(ops, engine)
    spent = fed.on(ops)
    fed.finish()
    return spent


class Grown(NamedTuple):
    """Of a long run's stretches, each beside short runs before and after it: what a launch takes (seconds) there and
    in the short runs; their ratio, and how the short ones differ among themselves.
    """

    long: list[float]
    short: list[float]
    ratios: list[float]
    same: list[float]


def grown(ops: int, short: int, stretches: int, beside: int) -> Grown:
    """A run of ``ops`` launches, in turns with runs of ``short`` launches in the same process: so many that they have
    ``beside`` launches, half of them before each of the stretches and half behind it.

    Measured one after the other, minutes apart, the two differed by more than they do: the machine did.
    """
    found, fed = Grown([], [], [], []), Fed(ops)
    each = beside // short // 2
    for _ in range(stretches):
        before, slow, after = runs(short, each), fed.on(ops // stretches), runs(short, each)
        found.long.append(slow)
        found.short.append((before + after) / 2)
        found.ratios.append(slow / found.short[-1])
        found.same.append(after / before)
    fed.finish()
    return found


def runs(ops: int, count: int, engine: Engine = "native") -> float:
    """Seconds for a launch of so many runs."""
    return fmean(measure(ops, engine) for _ in range(count))


if __name__ == "__main__":
    for engine in get_args(Engine):
        for ops in (1_000, 100_000):
            print(f"{engine:>6}, {ops:>7} launches: {measure(ops, engine) * 1e6:5.2f} microseconds each")
