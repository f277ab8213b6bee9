"""Measures the happens-before detector's time for an operation, and its growth with the trace.

Run: ``python -m benchmarks.detector``. The claim: at most a microsecond per launch with two reads and a write (15 in
the Python engine, the reference), and as much for the ten-millionth as for the first thousand.

:mod:`benchmarks.instruction_counts` counts instructions, which other load does not disturb. There, a launch of this
sequence misses a cache of 1 MiB 25.1 times among the launches from 2,000 to 40,000, and as often among those from
41,000 to 120,000; 22.9 times among those from 1,000 to 2,000, as less of the buffer is remembered, in memory that
is new.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from itertools import islice, product
from statistics import fmean
from typing import NamedTuple, get_args

from streamrace.detectors import RaceDetector
from streamrace.detectors.engines import Engine
from streamrace.trace.encoding import Encoded, encode
from streamrace.trace.records import (
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
    Reuse,
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
ARENA = 4 << 20  # bytes that are handed out again
Trace = Callable[[int], Iterator[TraceRecord]]


def synthetic(ops: int, *, seed: int = 0) -> Iterator[TraceRecord]:
    """Yield ``ops`` launches of a training-like run without races; about four other records to a launch."""
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


def handed_on(ops: int, *, seed: int = 0) -> Iterator[TraceRecord]:
    """Yield ``ops`` launches on memory that is reused again and again, split differently each time.

    Accesses are in rows and columns, by elements, and seldom from end to end; the host waits for nothing. About three
    other records to a launch.
    """
    draw = random.Random(seed)
    yield begin(0, 1)
    for number, name in enumerate(STREAMS):
        yield StreamName(number, name)
    yield Stack(0, (Frame("model.py", 1, "forward"),))
    free = [(-1, 0, ARENA)]  # (former block, offset, bytes); former -1: never allocated before
    live: list[tuple[int, int]] = []
    stream = marker = 0
    for op in range(ops):
        if op % 4 == 0:
            before, stream = stream, draw.randrange(len(STREAMS))
            yield Record(marker, before)
            yield Wait(stream, marker, 0)
            marker += 1
        rows, columns = draw.choice([32, 48, 64, 72]), 96
        nbytes = size = rows * columns * 4
        block, lo = op + 1, 0
        yield Alloc(block, nbytes, 0, op)
        while size:
            former, start, length = free.pop(0)
            part = min(size, length)
            if part < length:
                free.insert(0, (former, start + part, length - part))
            last = all(one != former for one, _, _ in free)
            yield Reuse(block, former, lo, lo + part, start, 0, last)
            lo, size = lo + part, size - part
        live.append((block, rows))
        other, height = draw.choice(live[-20:])
        step, column = draw.choice([1, 2, 3, 4]), draw.randrange(columns - 8)
        reads = [_matrix(other, height, column, step, (columns - 1 - column) // step + 1, columns)]
        reads += [Access(other, 4 * at, 4 * at + 4) for at in draw.sample(range(height * columns), 2)]
        half = columns // 2
        writes = (
            [_matrix(block, rows, at, 1, half, columns) for at in (0, half)] if op % 8 else [Access(block, 0, nbytes)]
        )
        yield Launch(op, stream, "aten::add_", tuple(reads), tuple(writes), 0, 10 * op, 10 * op, 10 * op + 9)
        if len(live) > LIVE // 4:
            old, height = live.pop(draw.randrange(len(live)))
            yield Free(old, op, quiet=True)
            free.insert(draw.randrange(len(free) + 1), (old, 0, height * columns * 4))


def _matrix(block: int, rows: int, first: int, step: int, count: int, columns: int) -> Access:
    """Return the access to ``count`` columns of a matrix, ``step`` apart, beginning with column ``first``."""
    lo, row = 4 * first, 4 * columns
    return Access(block, lo, lo + (rows - 1) * row + 4 * step * (count - 1) + 4, (4, (rows, count), (row, 4 * step)))


class Fed:
    """A detector and the trace that it is fed. Feeding is timed in processor time, so that other load does not count,
    and without the creation of records, after a warm-up that reaches the largest number of live blocks.
    """

    def __init__(self, ops: int, engine: Engine = "native", trace: Trace = synthetic) -> None:
        self._detector, self._trace = RaceDetector(engine=engine), trace(WARM_UP + ops)
        self._encoded = engine == "native"  # as it gets records of a file
        self._fed = WARM_UP
        self._feed_until(WARM_UP)

    def on(self, ops: int) -> float:
        """Feed ``ops`` more launches; return seconds per launch, its share of the other records (about four) in it."""
        self._fed += ops
        return self._feed_until(self._fed) / ops

    def finish(self) -> None:
        self._detector.finish()

    def _feed_until(self, op: int) -> float:
        spent, some = 0.0, self._until(op)
        while batch := list(islice(some, 2000)):
            records = Encoded(encode(batch), range(len(batch)), "") if self._encoded else batch
            start = time.process_time()
            self._detector.feed(0, records)
            spent += time.process_time() - start
        return spent

    def _until(self, op: int) -> Iterator[TraceRecord]:
        for record in self._trace:
            yield record
            if isinstance(record, Launch) and record.op == op - 1:
                return


def measure(ops: int, engine: Engine = "native", trace: Trace = synthetic) -> float:
    """Return the seconds per launch of a run of ``ops`` launches."""
    fed = Fed(ops, engine, trace)
    spent = fed.on(ops)
    fed.finish()
    return spent


class Grown(NamedTuple):
    """Measurements of a long run's stretches, each compared with short runs before and after it. ``long``, ``short``:
    seconds per launch; ``ratios``: long to short; ``same``: the short runs after to those before (the noise).
    """

    long: list[float]
    short: list[float]
    ratios: list[float]
    same: list[float]


def grown(ops: int, short: int, stretches: int, beside: int) -> Grown:
    """Measure a run of ``ops`` launches in ``stretches``, in turns with runs of ``short`` launches in the same process.

    The short runs have ``beside`` launches for each stretch, half of them before it and half after it. Measured one
    after the other, minutes apart, the two differed by the machine's drift more than by their own difference.
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


def runs(ops: int, count: int, engine: Engine = "native", trace: Trace = synthetic) -> float:
    """Return the seconds per launch, averaged over ``count`` runs of ``ops`` launches."""
    return fmean(measure(ops, engine, trace) for _ in range(count))


if __name__ == "__main__":
    for engine, trace, ops in product(get_args(Engine), (synthetic, handed_on), (1_000, 100_000)):
        spent = measure(ops, engine, trace) * 1e6
        print(f"{engine:>6}, {trace.__name__:>9}, {ops:>7} launches: {spent:5.2f} microseconds each")
