"""Random programs, most of them with races: the device tells each access, and the detector finds what brute force does.

Streams, events that are recorded again, the host that waits, a second host thread, pinned memory in both directions,
kernels of one to four operands and lists of views. What each touches is worked out here from the program's slices,
what is ordered by a walk over an explicit graph.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from judged import story
from torch import Tensor

from streamrace.trace.records import Access
from tests.detectors.test_oracle import Bytes, Graph, Oracle
from tests.examples import examples

STREAMS, EVENTS, LENGTH, PINNED = 3, 2, 6, 2
HOST = -1  # what the host does to pinned memory


@dataclass(frozen=True)
class Part:
    """Some elements of one of the buffers: two on the device, and the pinned one."""

    buffer: int
    start: int
    stop: int
    step: int

    def of(self, buffers: list[Tensor]) -> Tensor:
        return buffers[self.buffer][self.start : self.stop : self.step]

    @property
    def touched(self) -> Bytes:
        elements = range(self.start, self.stop, self.step)
        return frozenset((self.buffer, 4 * one + byte) for one in elements for byte in range(4))

    @property
    def size(self) -> int:
        return len(range(self.start, self.stop, self.step))


@dataclass
class Expected:
    """What the program does, by this test's own reading of it: launch by launch."""

    oracle: Oracle = field(default_factory=lambda: Oracle(Graph()))
    launches: list[tuple[Bytes, Bytes]] = field(default_factory=list)

    def launch(self, stream: int, reads: list[Part], writes: list[Part]) -> None:
        oracle = self.oracle
        if stream == HOST:
            node = oracle.host = oracle.graph.node(oracle.host)
        else:
            node = oracle.enqueue(stream)
        seen, written = (frozenset(byte for part in parts for byte in part.touched) for parts in (reads, writes))
        number = len(self.launches)
        self.launches.append((seen, written))
        oracle.accesses += [(number, node, seen, False), (number, node, written, True)]


@st.composite
def parts(draw: st.DrawFn, *, of: tuple[int, ...] = (0, 1), size: int | None = None, dense: bool = False) -> Part:
    step = 1 if dense else draw(st.sampled_from([1, 1, 1, 2]))
    longest = (LENGTH + step - 1) // step
    many = size if size is not None else draw(st.integers(1, longest))
    if many > longest:
        step = 1
    start = draw(st.integers(0, LENGTH - 1 - (many - 1) * step))
    return Part(draw(st.sampled_from(of)), start, start + (many - 1) * step + 1, step)


@st.composite
def kernels(draw: st.DrawFn) -> Any:
    """One launch each: of one operand to four, or of a list of views."""
    kind = draw(st.sampled_from(["fill", "scale", "where", "cat", "fused"]))
    size = draw(st.integers(1, 2))
    several = [draw(parts(size=size)) for _ in range(4)]
    if kind == "fused":  # of a kernel's own operands none may lie on another
        several = [
            Part(number % 2, 3 * (number // 2), 3 * (number // 2) + 1 + draw(st.integers(0, 2)), 1)
            for number in range(4)
        ]
        several = draw(st.permutations(several))[: draw(st.integers(1, 4))]
    return ("kernel", draw(st.integers(0, STREAMS - 1)), kind, several)


STREAM, EVENT = st.integers(0, STREAMS - 1), st.integers(0, EVENTS - 1)
# Dense, as a copy between host and device goes by a copy of its own where one side is not.
COPIED = st.integers(1, 4).flatmap(
    lambda size: st.tuples(parts(size=size, dense=True), parts(of=(PINNED,), size=size, dense=True))
)
OPERATION = st.one_of(
    kernels(),
    kernels(),
    kernels(),
    st.tuples(st.just("record"), EVENT, STREAM),
    st.tuples(st.just("record"), EVENT, STREAM),
    st.tuples(st.just("wait"), STREAM, EVENT),
    st.tuples(st.just("wait"), STREAM, EVENT),
    st.tuples(st.just("follow"), STREAM, STREAM),
    st.tuples(st.just("by event"), STREAM, STREAM, EVENT),
    st.tuples(st.just("by event"), STREAM, STREAM, EVENT),
    st.tuples(st.just("by event"), STREAM, STREAM, EVENT),
    st.tuples(st.just("synchronize all")),
    st.tuples(st.just("host waits"), EVENT),
    st.tuples(st.just("synchronize"), STREAM),
    st.tuples(st.just("to pinned"), STREAM, COPIED),
    st.tuples(st.just("from pinned"), STREAM, COPIED),
    st.tuples(st.just("host reads"), parts(of=(PINNED,))),
    st.tuples(st.just("host writes"), parts(of=(PINNED,))),
)
PROGRAM = st.lists(st.tuples(st.booleans(), OPERATION), min_size=6, max_size=16)


@dataclass
class Played:
    """The program on the device. The events are made once, and recorded again and again."""

    buffers: list[Tensor]
    streams: list[torch.cuda.Stream]
    events: list[torch.cuda.Event]
    expected: Expected = field(default_factory=Expected)
    markers: dict[int, int] = field(default_factory=dict)

    def plays(self, operation: Any) -> None:
        oracle = self.expected.oracle
        match operation:
            case ("kernel", stream, kind, several):
                with torch.cuda.stream(self.streams[stream]):
                    reads, writes = _KERNELS[kind](self.buffers, several)
                self.expected.launch(stream, reads, writes)
            case ("record", event, stream):
                self.events[event].record(self.streams[stream])
                self.markers[event] = oracle.enqueue(stream)
            case ("wait", stream, event):
                self.streams[stream].wait_event(self.events[event])
                if event in self.markers:
                    oracle.enqueue(stream, self.markers[event])
            case ("by event", later, earlier, event):
                self.plays(("record", event, earlier))
                self.plays(("wait", later, event))
            case ("synchronize all",):
                torch.cuda.synchronize()
                for stream in range(STREAMS):
                    oracle.host = oracle.graph.node(oracle.host, oracle.enqueue(stream))
            case ("follow", later, earlier):
                self.streams[later].wait_stream(self.streams[earlier])
                oracle.enqueue(later, oracle.enqueue(earlier))
            case ("host waits", event):
                self.events[event].synchronize()
                if event in self.markers:
                    oracle.host = oracle.graph.node(oracle.host, self.markers[event])
            case ("synchronize", stream):
                self.streams[stream].synchronize()
                oracle.host = oracle.graph.node(oracle.host, oracle.enqueue(stream))
            case ("to pinned" | "from pinned" as way, stream, (there, here)):
                target, source = (here, there) if way == "to pinned" else (there, here)
                with torch.cuda.stream(self.streams[stream]):
                    target.of(self.buffers).copy_(source.of(self.buffers), non_blocking=True)
                self.expected.launch(stream, [source], [target])
            case ("host reads", part):
                part.of(self.buffers).tolist()
                self.expected.launch(HOST, [part], [])
            case ("host writes", part):
                part.of(self.buffers).fill_(3)
                self.expected.launch(HOST, [], [part])


def _fill(buffers: list[Tensor], several: list[Part]) -> tuple[list[Part], list[Part]]:
    several[0].of(buffers).fill_(2)
    return [], several[:1]


def _scale(buffers: list[Tensor], several: list[Part]) -> tuple[list[Part], list[Part]]:
    several[0].of(buffers).mul_(0.5)
    return several[:1], several[:1]


def _where(buffers: list[Tensor], several: list[Part]) -> tuple[list[Part], list[Part]]:
    target, *operands = several
    own = {one.buffer for one in operands}
    if target.buffer in own:  # an operand may not lie on the result
        torch.addcmul(*[one.of(buffers) for one in operands])
        return operands, []
    torch.addcmul(*[one.of(buffers) for one in operands], out=target.of(buffers))
    return operands, [target]


def _cat(buffers: list[Tensor], several: list[Part]) -> tuple[list[Part], list[Part]]:
    torch.cat([one.of(buffers) for one in several])
    return several, []


def _fused(buffers: list[Tensor], several: list[Part]) -> tuple[list[Part], list[Part]]:
    """Two lists of views, each of which the kernel may write."""
    half = max(1, len(several) // 2)
    several = several[: 2 * half] if len(several) > 1 else several * 2
    own = [one.of(buffers) for one in several]
    more: Any = {
        "weight_decay": 0.0,
        "momentum": 0.0,
        "lr": 0.1,
        "dampening": 0.0,
        "nesterov": False,
        "maximize": False,
    }
    torch._fused_sgd_(own[:half], own[half:], [], is_first_step=True, **more)
    return [], several


_KERNELS: dict[str, Callable[[list[Tensor], list[Part]], tuple[list[Part], list[Part]]]] = {
    "fill": _fill,
    "scale": _scale,
    "where": _where,
    "cat": _cat,
    "fused": _fused,
}


def told_of(accesses: tuple[Access, ...], blocks: list[int]) -> Bytes:
    """What the device told, in bytes of the buffers; a kernel's result of its own is left out."""
    found = set()
    for one in accesses:
        if one.block not in blocks:
            continue
        starts = [one.lo]
        itemsize, sizes, strides = one.layout or (one.hi - one.lo, (), ())
        for size, stride in zip(sizes, strides, strict=True):
            starts = [start + index * stride for start in starts for index in range(size)]
        found |= {(blocks.index(one.block), start + byte) for start in starts for byte in range(itemsize)}
    return frozenset(found)


@contextmanager
def threads() -> Iterator[Callable[[bool, Callable[[], None]], None]]:
    """Lets this thread do something, or another one, which this one waits for."""
    with ThreadPoolExecutor(1) as other:
        yield lambda elsewhere, do: other.submit(do).result() if elsewhere else do()


def test_every_access_and_every_race_is_found() -> None:
    streams = [torch.cuda.default_stream(), torch.cuda.Stream(), torch.cuda.Stream()]

    @examples(120, suppress_health_check=[HealthCheck.too_slow])
    @given(program=PROGRAM)
    def each(program: list[Any]) -> None:
        with story() as told, threads() as let:
            buffers = [torch.zeros(LENGTH, device="cuda") for _ in range(PINNED)]
            buffers.append(torch.zeros(LENGTH).pin_memory())
            torch.cuda.synchronize()
            played = Played(buffers, streams, [torch.cuda.Event() for _ in range(EVENTS)])
            for elsewhere, operation in program:
                let(elsewhere, lambda operation=operation: played.plays(operation))
        blocks = [launch.writes[0].block for launch in told.launches[: len(buffers)]]
        launches = told.launches[len(buffers) :]
        expected = played.expected.launches
        assert [(told_of(one.reads, blocks), told_of(one.writes, blocks)) for one in launches] == expected
        numbers = {launch.op: number for number, launch in enumerate(launches)}
        named = {
            (numbers[example.first.op], numbers[example.second.op])  # type: ignore[index]
            for race in told.races
            for example in race.examples
        }
        racing = played.expected.oracle.racing()
        assert named <= racing
        assert {second for _, second in named} == {second for _, second in racing}

    each()
