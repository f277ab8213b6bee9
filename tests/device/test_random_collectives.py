"""Random programs of two ranks: of single and coalesced collectives the races are found that brute force finds.

Each collective runs on the group's own stream or on the current one, alone or as one of a batch; somebody waits for it,
or nobody. All programs of one run are one job: its ranks meet in a barrier between two of them.
"""

from __future__ import annotations

import random
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from world import together

from streamrace.detectors import RaceDetector
from streamrace.trace.files import TraceReader, file_of
from streamrace.trace.records import Collective, Frame, Launch, Stack
from tests.detectors.test_oracle import Bytes, Graph, Oracle
from tests.examples import examples, seed

STREAMS, BUFFERS, ELEMENTS = 2, 4, 4
GROUP = STREAMS  # the group's own stream, in the oracle
Operation = tuple[Any, ...]


def drawn(count: int, seed: int) -> list[list[Operation]]:
    draw = random.Random(seed)

    def one() -> Operation:
        stream, buffer, other = draw.randrange(STREAMS), *draw.sample(range(BUFFERS), 2)
        match draw.choice(
            ["write", "read", "copy", "follow", "reduce", "reduce", "gather", "batch", "batch", "wait", "wait"]
        ):
            case "write":
                return "write", stream, buffer
            case "read":
                return "read", stream, buffer
            case "copy":
                return "copy", stream, buffer, other
            case "follow":
                return "follow", stream, 1 - stream
            case "reduce":
                return "collective", stream, draw.random() < 0.7, [("all_reduce", buffer, buffer)]
            case "gather":
                return "collective", stream, draw.random() < 0.7, [("all_gather", buffer, other)]
            case "batch":
                several = draw.sample(range(BUFFERS), draw.choice([2, 3]))
                return "collective", stream, draw.random() < 0.7, [("all_reduce", one, one) for one in several]
            case _:
                return "wait", stream, draw.randrange(2)

    def program() -> Iterator[Operation]:
        for _ in range(draw.randint(3, 8)):
            operation = one()
            yield operation
            if operation[0] == "collective" and draw.random() < 0.5:  # most often who waits is who goes on with it
                yield "wait", operation[1], 0
                _, buffer, _ = draw.choice(operation[3])
                yield draw.choice(["read", "write"]), operation[1], buffer

    return [list(program()) for _ in range(count)]


def plays(program: list[Operation], streams: list[torch.cuda.Stream], device: str) -> None:
    """What the program does on a rank, between two kernels that nothing else runs."""
    buffers = [torch.ones(ELEMENTS, device=device) for _ in range(BUFFERS)]
    outs = [torch.ones(2 * ELEMENTS, device=device) for _ in range(BUFFERS)]
    sinks = [torch.ones(ELEMENTS, device=device) for _ in program]
    mark = torch.ones(1, device=device)
    mark.neg_()
    torch.cuda.synchronize()
    works: list[Any] = []
    for operation in program:
        with torch.cuda.stream(streams[operation[1]]):
            match operation:
                case ("write", _, buffer):
                    buffers[buffer].fill_(1)
                case ("read", _, buffer):
                    sinks.pop().copy_(buffers[buffer])
                case ("copy", _, buffer, other):
                    buffers[buffer].copy_(buffers[other])
                case ("follow", stream, other):
                    streams[stream].wait_stream(streams[other])
                case ("wait", _, back) if back < len(works):
                    works[-1 - back].wait()
                case ("collective", _, apart, [("all_gather", source, target)]):
                    work = dist.all_gather_into_tensor(outs[target], buffers[source], async_op=apart)
                    works += [work] if apart else []
                case ("collective", _, apart, [(_, buffer, _)]):
                    work = dist.all_reduce(buffers[buffer], async_op=apart)
                    works += [work] if apart else []
                case ("collective", _, apart, several):
                    with dist._coalescing_manager(async_ops=apart) as batch:
                        for _, buffer, _ in several:
                            dist.all_reduce(buffers[buffer])
                    works += [batch] if apart else []
    torch.cuda.synchronize()
    mark.neg_()
    torch.cuda.synchronize()
    dist.barrier()


def expects(program: list[Operation]) -> list[Oracle]:
    """The same by this test's own reading of it. ``op`` is the number of the launch within the program."""
    graph = Graph()
    oracles = [Oracle(graph), Oracle(graph)]
    works: list[list[list[int]]] = []  # by work, by rank: the nodes that a wait waits for
    numbers = [0, 0]

    def touches(rank: int, start: int, end: int, reads: list[int], writes: list[int]) -> None:
        for node, which, written in ((start, reads, False), (end, writes, True)):
            touched: Bytes = frozenset((one, 0) for one in which)
            oracles[rank].accesses.append((numbers[rank], node, touched, written))
        numbers[rank] += 1

    for operation in program:
        match operation:
            case ("collective", stream, apart, several):
                on = GROUP if apart else stream
                if apart:
                    for oracle in oracles:
                        oracle.enqueue(GROUP, *([oracle.tails[stream]] if stream in oracle.tails else []))
                ends: list[list[int]] = [[], []]
                for kind, source, target in several:
                    begun = [oracle.enqueue(on) for oracle in oracles]
                    for rank, oracle in enumerate(oracles):
                        done = oracle.enqueue(on, begun[1 - rank])
                        ends[rank].append(done)
                        touches(
                            rank, begun[rank], done, [source], [target if kind == "all_reduce" else BUFFERS + target]
                        )
                if apart:
                    works.append(ends)
            case ("wait", stream, back) if back < len(works):
                for rank, oracle in enumerate(oracles):
                    oracle.enqueue(stream, *works[-1 - back][rank])
            case ("follow", stream, other):
                for oracle in oracles:
                    oracle.enqueue(stream, oracle.enqueue(other))
            case ("write" | "read" | "copy" as kind, stream, buffer, *other):
                for rank, oracle in enumerate(oracles):
                    node = oracle.enqueue(stream)
                    reads = [buffer] if kind == "read" else other
                    touches(rank, node, node, reads, [] if kind == "read" else [buffer])
    return oracles


def races_of(folder: Path) -> Iterator[tuple[int, int, int]]:
    """Of every race the rank and both launches. Each launch stands on a line of its own, so that none is left out."""
    detector = RaceDetector()
    for rank in range(2):
        for record in TraceReader(file_of(folder, rank)).read():
            if isinstance(record, Launch | Collective):
                line = (1 << 20) + record.op
                detector.feed(rank, [Stack(line, (Frame("program", record.op, str(rank)),))])
                record = record._replace(stack=line)
            detector.feed(rank, [record])
    detector.finish()
    for race in detector.races:
        for example in race.examples:
            assert example.first.op is not None
            assert example.second.op is not None
            yield example.rank, example.first.op, example.second.op


def numbered(folder: Path, rank: int) -> dict[int, tuple[int, int]]:
    """Of each launch of the programs: which program's, and which of its launches."""
    found: dict[int, tuple[int, int]] = {}
    marks = number = 0
    for record in TraceReader(file_of(folder, rank)).read():
        match record:
            case Launch(kernel="aten::neg"):
                marks, number = marks + 1, 0
            case Launch(op=op) | Collective(op=op) if marks % 2:
                found[op] = (marks // 2, number)
                number += 1
    return found


def test_collectives_alone_and_as_a_batch(tmp_path: Path) -> None:
    programs = drawn(examples(50).max_examples, seed() or 1)

    def job(rank: int, world: int, device: str) -> None:
        streams = [torch.cuda.default_stream(), torch.cuda.Stream()]
        with warnings.catch_warnings(action="ignore"):
            for program in programs:
                plays(program, streams, device)

    together(2, job, tmp_path)
    numbers = [numbered(tmp_path, rank) for rank in range(2)]
    named: set[tuple[int, int, int, int]] = set()  # program, rank, the launch that was issued first, the second
    for rank, *launches in races_of(tmp_path):
        (program, first), (same, second) = (numbers[rank][op] for op in launches)
        assert program == same
        named.add((program, rank, first, second))
    racing = {
        (program, rank, first, second)
        for program, operations in enumerate(programs)
        for rank, oracle in enumerate(expects(operations))
        for first, second in oracle.racing()
    }
    clean = len(programs) - len({program for program, *_ in racing})
    assert 0.2 * len(programs) < clean < 0.8 * len(programs), "both kinds are drawn"
    for program, operations in enumerate(programs):
        mine, theirs = ({one for one in each if one[0] == program} for each in (named, racing))
        assert mine <= theirs, operations
        assert {(rank, second) for _, rank, _, second in mine} == {(rank, second) for _, rank, _, second in theirs}, (
            operations
        )
