"""Small random programs, executed in every legal order: what is a race, what shows it, and what it can do.

The truth is :mod:`tests.fuzz.oracle`. A program is run on the simulated GPU as well, recorded, and then

* the detector reports a race exactly when two legal orders have a conflicting pair in different orders,
* each race has a witness, a timing in which the pair is executed the other way round, and that order is a legal one,
* whatever operation comes late, the order is a legal one,
* a replay in any legal order has the values that the oracle has, bit for bit,
* one that takes over what earlier orders computed has them too, whatever of it was kept, and both engines number alike,
* a program without a race has the same values in all legal orders, and a harmful race other ones in some.
"""

from __future__ import annotations

import struct
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, note
from hypothesis import strategies as st

from streamrace.fuzz.subject import Subject
from streamrace.fuzz.witness import witness
from streamrace.replay.deviations import OperationDelay
from streamrace.replay.numbering import Numbering
from streamrace.replay.recording import Recording
from streamrace.replay.replayer import READ, ReplayOutcome
from streamrace.replay.sharing import SharingReplayer as Sharing
from streamrace.trace.records import Alloc, Collective, Launch, Stack
from tests.examples import examples
from tests.fuzz.oracle import (
    BUFFERS,
    EVENTS,
    STREAMS,
    Line,
    Memory,
    Oracle,
    Pair,
    Program,
    Side,
    View,
)
from tests.fuzz.served import GROUPS, Slow, Told, TwoRanks, run_alone

torch.set_num_threads(1)

MOST_WORK = 8  # operations in a program
MOST_KERNELS = (
    MOST_WORK,
    3,
)  # ... that are no collectives, by the number of other ranks: theirs go with all of one's own
MOST_ORDERS = 1000  # legal orders of a program
MILLISECOND = 1_000_000  # longer than any of the programs takes


@pytest.fixture(scope="module", autouse=True)
def two_ranks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TwoRanks]:
    """Before anything is run here: who used its device has none to hand on."""
    ranks = TwoRanks(tmp_path_factory.mktemp("ranks"))
    yield ranks
    ranks.close()


# -- comparing --------------------------------------------------------------------------------------------


class Found(NamedTuple):
    """What came of comparing one program. ``orders``: legal ones; ``results``: different outcomes they have."""

    races: set[Pair]
    told: set[Pair]  # those of them that the detector names
    kinds: set[str]
    orders: int
    executed: int  # orders that the simulated GPU can have, each replayed
    results: int
    harmful: int
    unshown: set[Pair]  # races without a witness


class Bound:
    """The nodes of an oracle among the effects of a recording."""

    def __init__(self, program: Program, recording: Recording, oracle: Oracle, subject: Subject) -> None:
        self.lines: dict[tuple[int, int], int] = {}  # by rank and op
        self.blocks: dict[tuple[int, int], int] = {}  # by rank and block of the trace: the oracle's
        for rank, records in recording.records.items():
            stacks: dict[int, int] = {}
            for one in records:
                if isinstance(one, Stack):
                    if one.frames and one.frames[0].file == f"rank{rank}.py":
                        stacks[one.id] = one.frames[0].line
                elif isinstance(one, (Launch, Collective)):
                    self.lines[rank, one.op] = stacks[one.stack]
                elif isinstance(one, Alloc):
                    self.blocks[rank, one.block] = sum(where == rank for where, _ in self.blocks)
        nodes = {node.key: at for at, node in enumerate(oracle.nodes)}
        self.nodes: dict[int, int] = {}  # by place
        self._parts: dict[tuple[int, int, str], str] = {}  # by rank, op and what it does to memory
        self._first: list[int] = []  # places before all nodes: the buffers' first values
        self._last: list[int] = []  # behind them: what is there at the end
        for place, effect in enumerate(subject.replayer.graph.effects):
            if effect.what == "probe":
                self._last.append(place)
                continue
            if effect.what in ("back", "inherit", "inherited"):
                self.nodes[place] = nodes[effect.rank, self.blocks[effect.rank, effect.item], effect.what]
                continue
            number = self.lines[effect.rank, effect.item]
            if number < program.first_line:
                self._first.append(place)
                continue
            self.nodes[place] = nodes[effect.rank, number, effect.what]
            for what in {"arrive": ("read",), "leave": ("write",)}.get(effect.what, ("read", "write")):
                self._parts[effect.rank, effect.item, what] = effect.what
        assert sorted(self.nodes.values()) == list(range(len(oracle.nodes)))
        self.places = {node: place for place, node in self.nodes.items()}

    def side(self, rank: int, op: int | None, what: str) -> tuple[int, str, str]:
        """An access as the oracle names it."""
        assert op is not None
        return self.lines[rank, op], self._parts[rank, op, what], what

    def replayed(self, order: Sequence[int]) -> np.ndarray[Any, np.dtype[np.int64]]:
        """The order of effects that has the nodes in this order."""
        return np.array([*self._first, *map(self.places.__getitem__, order), *self._last], dtype=np.int64)

    def order(self, effects: np.ndarray[Any, np.dtype[np.int64]]) -> list[int]:
        """The nodes in the order of effects."""
        return [self.nodes[place] for place in effects.tolist() if place in self.nodes]


def shown(outcome: ReplayOutcome) -> object:
    """All that came out, for comparing."""
    losses = sorted((look, repr(value)) for look, value in outcome.losses.items())
    return outcome.checksums, losses, sorted(outcome.bad.items()), outcome.departure, outcome.order.tolist()


@cache
def checksum(values: tuple[float, ...]) -> int:
    return zlib.crc32(struct.pack(f"{len(values)}f", *values))


def compare(program: Program, recording: Recording, told: Told) -> Found:
    """Assert all that the head of this file says."""
    oracle = Oracle(program, told.answers)  # what CUDA and NCCL promise
    device = Oracle(program, told.answers, together=True)  # what the simulated GPU does
    assert all(not one.before & ~other.before for one, other in zip(oracle.nodes, device.nodes, strict=True))
    if all(one.before == other.before for one, other in zip(oracle.nodes, device.nodes, strict=True)):
        device = oracle
    subject = Subject(recording)
    graph = subject.replayer.graph
    bound = Bound(program, recording, device, subject)
    written = subject.sharing.written
    sharing = [
        subject.sharing,
        Sharing(subject.replayer, numbering=Numbering),
        Sharing(subject.replayer, kept=written),  # what one order makes drives out what others made
        Sharing(subject.replayer, kept=written, numbering=Numbering),
        Sharing(subject.replayer, kept=written - 1),
    ]
    assert not any(one.reason for one in sharing)
    finals = [place for place, look in enumerate(subject.replayer.looks) if look.kind != READ]

    def left(memory: Memory) -> tuple[int, ...]:
        return tuple(checksum(tuple(map(memory.__getitem__, cells))) for rank in oracle.left for cells in rank)

    def learned(memory: Memory) -> tuple[int, ...]:
        return tuple(checksum(tuple(map(memory.__getitem__, cells))) for rank in oracle.learned for cells in rank)

    def replayed(checksums: Sequence[int]) -> tuple[int, ...]:
        return tuple([checksums[place] for place in finals])

    # The live run, and the reference.
    live = device.arranged(bound.order(graph.order(graph.times())))
    assert live is not None
    memory = device.run(live)
    recorded = learned(memory)
    assert replayed(subject.replayer.verify().checksums) == left(memory)
    assert recorded == tuple(checksum(values) for rank in told.seen for values in rank)
    issued = oracle.arranged(bound.order(graph.issue_order()))  # a rank takes in what it gives as soon as it arrives
    assert issued is not None
    expected = left(oracle.run(issued))
    assert replayed(subject.reference.checksums) == expected

    # Whatever comes late, the order is a legal one.
    for operation in subject.operations:
        for how in ("late", "long"):
            effects = graph.order(graph.times(subject.timing([OperationDelay(operation, how, MILLISECOND)])))
            order = device.arranged(bound.order(effects))
            assert order is not None
            outcome = subject.replayer.run_order(effects)
            assert replayed(outcome.checksums) == left(device.run(order))
            for one in sharing:
                assert shown(one.run_order(effects)) == shown(outcome)

    # Every order.
    results: Counter[tuple[Any, Any]] = Counter()
    executed = 0

    def visit(order: list[int], memory: Memory) -> None:
        results[left(memory), learned(memory)] += 1

    def replay(order: list[int], memory: Memory) -> None:
        nonlocal executed
        executed += 1
        outcome = subject.replayer.run_order(bound.replayed(order))
        for one in sharing:
            assert shown(one.run_order(bound.replayed(order))) == shown(outcome)
        values, read = left(memory), learned(memory)
        assert replayed(outcome.checksums) == values
        assert (outcome.departure is None) == (read == recorded)
        if device is oracle:
            results[values, read] += 1

    device.explore(replay)
    if device is not oracle:
        oracle.explore(visit)

    assert not any(one.reason for one in sharing)
    assert sharing[2].computations == sharing[3].computations
    assert (sharing[2].shared, sharing[2].held) == (sharing[3].shared, sharing[3].held)
    assert sharing[2].held <= written and not sharing[4].held

    # Races.
    racing = oracle.races()
    reported: dict[Pair, Any] = {}
    for race in subject.races:
        assert race.occurrences == len(race.examples)  # of one operation's two reads each may race
        (pair,) = {
            Pair(
                one.rank,
                bound.blocks[one.rank, one.block],
                bound.side(one.rank, one.first.op, race.first.access),
                bound.side(one.rank, one.second.op, race.second.access),
            )
            for one in race.examples
        }
        assert pair not in reported
        reported[pair] = race
        first, second = racing[pair]
        assert (race.kind == "reused") == (first.block != second.block)
    assert set(reported) == oracle.told()
    assert bool(reported) == bool(racing)
    if not reported:
        assert len(results) == 1

    # Witnesses.
    harmful, unshown = 0, set()
    for pair, race in reported.items():
        first, second = racing[pair]
        found = witness(subject, race)
        assert found.race is race
        if found.verdict is None:
            assert found.reason
            assert not device.reversible(first, second)
            unshown.add(pair)
            continue
        assert device.reversible(first, second)
        effects = graph.order(graph.times(subject.timing(found.deviations)))
        order = device.arranged(bound.order(effects))
        assert order is not None
        assert order.index(second.node) < order.index(first.node)
        values = left(device.run(order))
        assert replayed(subject.replayer.run_order(effects).checksums) == values
        assert found.harmful == (values != expected)
        if found.harmful:
            harmful += 1
            assert len({values for values, _ in results}) > 1
    kinds = {race.kind for race in reported.values()}
    return Found(set(racing), set(reported), kinds, sum(results.values()), executed, len(results), harmful, unshown)


# -- drawing programs -------------------------------------------------------------------------------------

WORK = ["copy", "copy", "add", "add", "scale", "scale", "new", "again", "again", "read", "item"]
ORDER = ["order", "record", "wait", "wait", "await", "synchronize", "ask", "ask work", "drop", "keep"]
ALONE = ["all_reduce", "all_gather"]
TOGETHER = ["all_reduce", "all_gather", "reduce_scatter", "broadcast", "broadcast", "send", "barrier"]
HALVES = ["[:2]", "[2:]", "[::2]", "[1::2]"]
SLOW = st.sampled_from(
    [{}, {"stream:one": 60.0}, {"stream:compute": 5.0}, {"stream:two": 60.0, "host": 5.0}, {"stream:compute": 60.0}]
)


class Step(NamedTuple):
    """What is drawn for one step; what it is decides which of it counts."""

    what: str
    rank: int
    stream: str
    other_stream: str
    buffer: str
    other_buffer: str
    whole: bool
    part: str
    other_part: str
    event: str
    number: int
    care: int
    waits: bool


def steps(kinds: Sequence[str], world: int) -> st.SearchStrategy[Step]:
    stream, buffer, half = st.sampled_from(STREAMS), st.sampled_from(BUFFERS), st.sampled_from(HALVES)
    return st.builds(
        Step,
        st.sampled_from(kinds),
        st.integers(0, world - 1),
        stream,
        stream,
        buffer,
        buffer,
        st.booleans(),
        half,
        half,
        st.sampled_from(EVENTS),
        st.integers(0, 5),
        st.integers(1, 10),
        st.sampled_from([False, False, True]),
    )


class Drafted:
    """What the lines of one rank have come to. ``users``: by buffer, the streams and collectives that touch it.

    ``kept``: buffers that ``record_stream`` names to another stream than their own; ``closed``: the own streams of such
    as were dropped, on which nothing is allocated any more, as it depends on the timing whose memory that would have.
    """

    def __init__(self, rank: int, owners: Sequence[str]) -> None:
        self.rank = rank
        self.owners = dict(zip(BUFFERS, owners, strict=False))
        self.users: dict[str, set[str | int]] = {name: set() for name in self.owners}
        self.works = 0
        self.kept: set[str] = set()
        self.closed: set[str] = set()


class Draft:
    """Makes a program of drawn steps: what makes no sense is left out, or made into something that does.

    A *careful* step first lets its stream wait for all that has touched its buffers; ``care`` of ten are.
    """

    def __init__(self, owners: Sequence[str], world: int, care: int) -> None:
        self.owners = tuple(owners)
        self.world = world
        self.care = care
        self.lines: list[Line] = []
        self.work = self.kernels = 0
        self.ranks = [Drafted(rank, owners) for rank in range(world)]

    def program(self) -> Program:
        """What was drafted; the end is cut off if there are too many orders."""
        program = Program(self.owners, tuple(self.lines), self.world)
        while Oracle(program).more_than(MOST_ORDERS):
            program = program._replace(lines=program.lines[:-1])
        return program

    def step(self, step: Step) -> None:
        rank, what, stream, name = self.ranks[step.rank], step.what, step.stream, step.buffer
        if what in WORK or what in TOGETHER:
            if self.work < MOST_WORK and (what in TOGETHER or self.kernels < MOST_KERNELS[self.world - 1]):
                self.work += 1
                self.kernels += what in WORK
                (self._kernel if what in WORK else self._meet)(step)
        elif what == "order":
            self._say(rank, what, stream, step.other_stream)
        elif what == "record":
            self._say(rank, what, step.event, stream)
        elif what == "wait":
            self._say(rank, what, stream, step.event)
        elif what in ("synchronize", "ask"):
            things = (stream, step.event, step.event, "device" if what == "synchronize" else stream)
            self._say(rank, what, things[step.number % len(things)])
        elif what == "await" and rank.works:
            self._say(rank, what, stream, step.number % rank.works)
        elif what == "ask work" and rank.works:
            self._say(rank, what, step.number % rank.works)
        elif what == "keep" and name in rank.owners:
            self._keep(rank, name, stream)
        elif what == "drop" and name in rank.owners:
            self._let_go(rank, step, name)
            self._say(rank, what, name)
            self._gone(rank, name)

    def _say(self, rank: Drafted, what: str, *args: Any) -> None:
        self.lines.append(Line(rank.rank, what, args))

    def _use(self, rank: Drafted, step: Step, stream: str, names: Sequence[str], by: str | int) -> None:
        for name in dict.fromkeys(names):
            for user in sorted(rank.users[name], key=str):
                if step.care <= self.care and user != stream:
                    self._say(rank, "await" if isinstance(user, int) else "order", stream, user)
            rank.users[name].add(by)

    def _let_go(self, rank: Drafted, step: Step, name: str) -> None:
        """Before ``name`` is dropped: its stream waits, or the allocator does."""
        owner = rank.owners[name]
        for user in sorted(rank.users[name], key=str):
            if step.care > self.care or user == owner:
                continue
            if isinstance(user, int):
                self._say(rank, "await", owner, user)
            elif step.waits:
                self._keep(rank, name, user)
            else:
                self._say(rank, "order", owner, user)

    def _keep(self, rank: Drafted, name: str, stream: str) -> None:
        self._say(rank, "keep", name, stream)
        if stream != rank.owners[name]:
            rank.kept.add(name)

    def _gone(self, rank: Drafted, name: str) -> None:
        owner = rank.owners.pop(name)
        if name in rank.kept:
            rank.kept.remove(name)
            rank.closed.add(owner)

    def _new(self, rank: Drafted, stream: str, name: str, *, empty: bool = False) -> None:
        if stream in rank.closed:
            return
        self._say(rank, "empty" if empty else "new", stream, name, *([] if empty else [50.0 + len(self.lines)]))
        if name in rank.owners:
            self._gone(rank, name)
        rank.owners[name] = stream
        rank.users[name] = {stream}

    def _again(self, rank: Drafted, step: Step, name: str) -> None:
        """A buffer is dropped, and another one takes its place: in its memory, unless somebody holds that."""
        owner = rank.owners[name]
        self._let_go(rank, step, name)
        self._say(rank, "drop", name)
        self._gone(rank, name)
        self._new(rank, owner, name, empty=step.waits)

    def _kernel(self, step: Step) -> None:
        rank, what, stream, name, other = self.ranks[step.rank], step.what, step.stream, step.buffer, step.other_buffer
        if what == "again" and name in rank.owners:
            self._again(rank, step, name)
            return
        used = [name, other] if what in ("copy", "add") else [name]
        missing = [one for one in used if one not in rank.owners]
        if missing or what in ("new", "again"):
            if not missing and stream not in rank.closed:
                self._let_go(rank, step, name)
            self._new(rank, stream, missing[0] if missing else name, empty=step.waits)
            return
        self._use(rank, step, stream, used, stream)
        part, other_part = ("", "") if step.whole else (step.part, step.other_part)
        if what in ("copy", "add"):
            source = View(other, _apart(part, other_part) if name == other else other_part)
            self._say(rank, what, stream, View(name, part), source)
        elif what == "scale":
            self._say(rank, what, stream, View(name, part))
        else:
            self._say(rank, "read", stream, View(name, _dense(part) if what == "read" else "[1]"))

    def _meet(self, step: Step) -> None:
        """All ranks take part. Rank 0 as drawn; the others, if any, with the other buffer, stream and part first."""
        what, root, group = step.what, step.rank, GROUPS[step.number % self.world]
        streams = (step.stream, step.other_stream)
        if what == "barrier":
            if not any(stream in rank.closed for rank, stream in zip(self.ranks, streams, strict=False)):
                self.lines.append(Line(-1, what, (streams,)))
                for rank in self.ranks:
                    rank.works += 1
            return
        sides = []
        for rank, stream in zip(self.ranks, streams, strict=False):
            names, parts = (step.buffer, step.other_buffer), (_dense(step.part), _dense(step.other_part))
            if rank.rank:
                names, parts = names[::-1], parts[::-1]
            inputs, outputs = (View(name, "" if step.whole else part) for name, part in zip(names, parts, strict=True))
            side: Side
            if what in ("send", "broadcast"):
                side = Side(stream, inputs, None) if rank.rank == root else Side(stream, None, outputs)
            elif what == "all_gather":
                side = Side(stream, inputs, outputs)
                if self.world > 1:
                    side = Side(stream, View(names[0], parts[0]), View(names[1]))
            elif what == "reduce_scatter":
                side = Side(stream, View(names[0]), View(names[1], parts[1]))
            else:
                side = Side(stream, inputs, inputs)
            sides.append(side._replace(waits=step.waits and what != "send"))
        for rank, side in zip(self.ranks, sides, strict=True):
            missing = {view.buffer for view in side[1:3] if view is not None} - rank.owners.keys()
            if missing and side.stream in rank.closed:
                return
        for rank, side in zip(self.ranks, sides, strict=True):
            used = [view.buffer for view in side[1:3] if view is not None]
            for name in used:
                if name not in rank.owners:
                    self._new(rank, side.stream, name)
            self._use(rank, step, side.stream, used, side.stream if side.waits else rank.works)
            rank.works += not side.waits
        channel = f"{group} {root}>{1 - root}" if what == "send" else group
        self.lines.append(Line(-1, "collective", (what, channel, root, tuple(sides))))


def _dense(part: str) -> str:
    """The half that comes to mind first: NCCL takes memory in one piece, as does a copy to the host, else it is two."""
    return {"[::2]": "[:2]", "[1::2]": "[2:]"}.get(part, part)


def _apart(part: str, other: str) -> str:
    """Two parts of one buffer that a kernel may read and write: the same, or with no common cell."""
    return other if {part, other} in ({"[:2]", "[2:]"}, {"[::2]", "[1::2]"}) else part


@st.composite
def programs(draw: st.DrawFn, kinds: Sequence[str], world: int) -> Program:
    owners = draw(st.tuples(*[st.sampled_from(STREAMS)] * 3))
    draft = Draft(owners, world, draw(st.sampled_from([0, 2, 5, 10] if world == 1 else [0, 0, 1, 5])))
    for step in draw(st.lists(steps(kinds, world), min_size=9, max_size=16)):
        draft.step(step)
    return draft.program()


ONE = programs(WORK * 3 + ORDER * 2 + ALONE * 4, 1)
TWO = programs(WORK + ORDER + TOGETHER * 2, 2)


# -- all programs -----------------------------------------------------------------------------------------


@examples(90, suppress_health_check=[HealthCheck.too_slow])
@given(program=ONE, slow=SLOW)
def test_one_rank(program: Program, slow: Slow) -> None:
    note(program.source(0))
    compare(program, *run_alone(program, slow))


@examples(30, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
@given(program=TWO, slow=SLOW)
def test_two_ranks(program: Program, slow: Slow, two_ranks: TwoRanks) -> None:
    for rank in range(2):
        note(program.source(rank))
    compare(program, *two_ranks.run(program, slow))


# -- stories ------------------------------------------------------------------------------------------------

A, B, C = View("a"), View("b"), View("c")


def does(what: str, *args: Any, rank: int = 0) -> Line:
    return Line(rank, what, args)


def gathers(source: View, target: View, *, on: str = "compute", waits: bool = False) -> Line:
    return Line(-1, "collective", ("all_gather", "world", -1, (Side(on, source, target, waits),)))


def story(*lines: Line) -> tuple[set[str], Found]:
    """The races of a program of one rank, by the number of the line in the story, and all else that was found."""
    program = Program(("compute", "compute", "compute"), lines)
    found = compare(program, *run_alone(program, {}))
    return races(program, found.races), found


def races(program: Program, pairs: set[Pair]) -> set[str]:
    def told(line: int, part: str, what: str) -> str:
        return f"{what} in {line - program.first_line}"

    return {f"{told(*pair.first)}, {told(*pair.second)}" for pair in pairs}


def test_a_consumer_that_does_not_wait() -> None:
    """The copy takes what the multiplication has not written yet, in one of the two orders that there are."""
    racing, found = story(does("scale", "compute", A), does("copy", "one", B, A))
    assert racing == {"write in 0, read in 1"}
    assert (found.orders, found.results, found.harmful) == (2, 2, 1)


@pytest.mark.parametrize(
    "wait",
    [
        [does("order", "one", "compute")],
        [does("record", "red", "compute"), does("wait", "one", "red")],
        [does("synchronize", "compute")],
        [does("record", "red", "compute"), does("synchronize", "red")],
        [does("synchronize", "device")],
        [does("read", "compute", C)],
    ],
    ids=["wait_stream", "wait_event", "stream", "event", "device", "item"],
)
def test_a_consumer_that_waits(wait: list[Line]) -> None:
    racing, found = story(does("scale", "compute", A), *wait, does("copy", "one", B, A))
    assert not racing
    assert (found.orders, found.results) == (1, 1)


@pytest.mark.parametrize(
    "wait",
    [
        [does("order", "compute", "one")],
        [does("wait", "one", "red"), does("record", "red", "compute")],
        [does("record", "red", "two"), does("wait", "one", "red")],
        [does("synchronize", "two")],
    ],
    ids=["the other way round", "before the record", "for another stream", "the host for another stream"],
)
def test_a_wait_that_is_none(wait: list[Line]) -> None:
    racing, _ = story(does("scale", "compute", A), *wait, does("copy", "one", B, A))
    assert racing == {f"write in 0, read in {1 + len(wait)}"}


def test_two_halves_are_two_things() -> None:
    racing, found = story(
        does("scale", "compute", View("a", "[:2]")), does("copy", "one", View("b", "[2:]"), View("a", "[2:]"))
    )
    assert not racing
    assert (found.orders, found.results) == (2, 1)


def test_memory_is_let_go_while_another_stream_reads_it() -> None:
    """Its next owner overwrites what has not been read yet. That nobody gets it would harm nobody."""
    racing, found = story(does("copy", "one", B, A), does("drop", "a"), does("new", "compute", "a", 50.0))
    assert racing == {"read in 0, write in 2"}
    assert (found.kinds, found.orders, found.results, found.harmful) == ({"reused"}, 2, 2, 1)
    racing, found = story(does("copy", "one", B, A), does("drop", "a"), does("new", "two", "a", 50.0))
    assert not racing
    assert (found.orders, found.results) == (2, 1)


@pytest.mark.parametrize(
    "wait",
    [
        [does("order", "compute", "one"), does("drop", "a")],
        [does("drop", "a"), does("order", "compute", "one")],
        [does("drop", "a"), does("synchronize", "one")],
    ],
    ids=["before", "after", "host"],
)
def test_the_next_owner_waits(wait: list[Line]) -> None:
    """It does not matter when: a free touches nothing."""
    racing, found = story(does("copy", "one", B, A), *wait, does("new", "compute", "a", 50.0))
    assert not racing
    assert found.orders == 1


def test_an_owner_that_does_nothing_passes_on_what_those_before_it_did() -> None:
    racing, found = story(
        does("copy", "one", B, A),
        does("drop", "a"),
        does("empty", "compute", "a"),
        does("drop", "a"),
        does("new", "compute", "a", 50.0),
    )
    assert racing == {"read in 0, write in 4"}
    assert found.harmful == 1


@pytest.mark.parametrize(
    ("first", "told"),
    [(does("copy", "one", B, A), 1), (does("copy", "one", A, B), 2)],
    ids=["a read before it is told by it", "a write before it is not"],
)
def test_an_owner_that_only_reads(first: Line, told: int) -> None:
    """Of what comes later and waits for neither."""
    lines = (
        first,
        does("drop", "a"),
        does("empty", "compute", "a"),
        does("order", "two", "one"),
        does("copy", "two", C, A),
        does("copy", "compute", A, C),
    )
    program = Program(("compute", "compute", "compute"), lines)
    recording, answers = run_alone(program, {})
    found = compare(program, recording, answers)
    assert {"read in 4, write in 5", "write in 4, read in 5"} < races(program, found.races)
    assert len({pair for pair in found.told if pair.block == 3}) == told


@pytest.mark.parametrize("busy", [0, 3])
def test_record_stream_keeps_it(busy: int) -> None:
    """Whether the reader is done when the memory is wanted, or not: then the new buffer lies elsewhere."""
    lines = (
        does("copy", "one", B, A),
        does("keep", "a", "one"),
        does("drop", "a"),
        *[does("scale", "two", C)] * busy,
        does("new", "compute", "a", 50.0),
    )
    program = Program(("compute", "compute", "compute"), lines)
    recording, told = run_alone(program, {})
    assert told.answers[0].formers == ({3: 0} if busy else {})
    found = compare(program, recording, told)
    assert (found.races, found.results) == (set(), 1)


def test_the_input_of_a_collective_is_overwritten() -> None:
    racing, found = story(gathers(A, B), does("scale", "compute", A))
    assert racing == {"read in 0, write in 1"}
    assert (found.orders, found.results, found.harmful) == (3, 2, 1)


def test_nobody_waits_for_a_collective() -> None:
    racing, found = story(gathers(A, B), does("copy", "compute", C, B))
    assert racing == {"write in 0, read in 1"}
    assert (found.orders, found.results, found.harmful) == (3, 2, 1)


def test_another_stream_waits_for_the_collective() -> None:
    racing, _ = story(gathers(A, B), does("await", "one", 0), does("copy", "compute", C, B))
    assert racing == {"write in 0, read in 2"}


def test_a_collective_that_is_waited_for() -> None:
    racing, found = story(
        gathers(A, B), does("await", "compute", 0), does("copy", "compute", C, B), does("scale", "compute", A)
    )
    assert not racing
    assert found.orders == 1


def test_a_collective_holds_its_input_until_somebody_waits() -> None:
    """Memory that is dropped under it passes on behind that wait, and then it has been read."""
    for waited in (False, True):
        program = Program(
            ("compute", "compute", "compute"),
            (
                gathers(A, B),
                does("drop", "a"),
                *[does("await", "compute", 0)] * waited,
                does("new", "compute", "a", 50.0),
            ),
        )
        recording, told = run_alone(program, {})
        assert bool(told.answers[0].formers) == waited
        assert not compare(program, recording, told).races


def test_without_async_op_a_collective_is_work_of_the_current_stream() -> None:
    racing, _ = story(gathers(A, B, waits=True), does("copy", "compute", C, B), does("copy", "one", C, B))
    assert racing == {"write in 0, read in 2", "write in 1, write in 2"}


def test_one_communicator_is_no_order() -> None:
    """Its collectives run one after the other, on whatever streams; NCCL does not promise that, and no timing of the
    simulated GPU shows it."""
    racing, found = story(gathers(A, B, waits=True), gathers(B, C, on="one"))
    assert racing == {"write in 0, read in 1"}
    assert len(found.unshown) == 1


def test_a_race_that_the_device_cannot_show(two_ranks: TwoRanks) -> None:
    """One of the two kinds there are: here a collective starts when its last rank has arrived, with NCCL it need not.

    Rank 1 comes to the broadcast after the all-reduce, and the all-reduce comes after what rank 0 wrote. But rank 0 is
    the broadcast's source, and NCCL lets a source start by itself.
    """
    program = Program(
        ("compute", "compute", "compute"),
        (
            does("scale", "one", A),
            Line(-1, "collective", ("all_reduce", "world", -1, (Side("one", B, B), Side("compute", B, B)))),
            does("await", "compute", 0, rank=1),
            Line(-1, "collective", ("broadcast", "other", 0, (Side("compute", A, None), Side("compute", None, A)))),
            does("await", "compute", 1),
            does("copy", "compute", C, A),
        ),
        2,
    )
    found = compare(program, *two_ranks.run(program, {}))
    assert races(program, found.races) == {"write in 0, read in 3", "write in 0, read in 5"}
    assert found.unshown == found.races


def test_a_race_by_way_of_another_rank(two_ranks: TwoRanks) -> None:
    """That rank 1 is done with the all-reduce says that rank 0 has started, not that rank 0's output is there."""
    program = Program(
        ("compute", "compute", "compute"),
        (
            Line(-1, "collective", ("all_reduce", "world", -1, (Side("one", A, A), Side("compute", A, A)))),
            does("await", "compute", 0, rank=1),
            Line(-1, "collective", ("all_reduce", "other", -1, (Side("compute", B, B), Side("compute", B, B)))),
            does("await", "compute", 1),
            does("copy", "compute", C, A),
        ),
        2,
    )
    found = compare(program, *two_ranks.run(program, {}))
    assert races(program, found.races) == {"write in 0, read in 4"}
    assert found.harmful == 1
