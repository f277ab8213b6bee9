"""Little programs of streams, events and collectives, and all orders in which they may legally take effect.

A :class:`Program` is a list of lines. Each is rendered as a line of Python that says ``torch.cuda`` and
``torch.distributed`` (:meth:`Program.source`), and is told to the :class:`Oracle`, which knows nothing of the simulated
GPU, of traces or of detectors: it holds, for every access, the set of those that come before it by the rules of CUDA
streams and NCCL, and a list of numbers that stands for the memory.

What the rules are (*guide*: NVIDIA's CUDA C++ Programming Guide; files are torch 2.13's):

* the host issues in order; a stream executes in order, and nothing before it was issued (guide, "Streams"),
* a wait puts a stream behind what an event has recorded last, a host wait the host (a ``query()`` that answered True is
  one: the answer is the run's), a read by the host is work on the current stream and a wait for it (guide, "Events";
  ``Copy.cu``, ``memcpy_and_sync``),
* a collective with ``async_op`` is work on a stream of its group's own, behind the stream it was issued from; without
  it is work on that stream itself (``ProcessGroupNCCL.cpp``, ``collective``). A send is one on a stream of its own for
  each direction (:mod:`streamrace.device.nccl`). It takes its inputs in when it starts and writes its outputs when it
  ends; it ends after those members have started whose inputs it gets. ``Work.wait()`` makes the current stream wait, a
  barrier's the host too (``WorkNCCL::synchronizeInternal``); a barrier is an all-reduce of a number of its own, which
  it sets before,
* a free touches nothing. Whose memory a new buffer has is the run's answer, and what the one before it did with it may
  come late: the two have the same cells. A buffer may get the memory of one that the program has dropped, of the same
  stream (``CUDACachingAllocator.cpp``, ``free_block``), which no collective holds: of one that runs on its group's
  stream the inputs are held until somebody has waited for it (``TensorShelf``), the outputs as long as its work lives
  (``outputs_``), here to the end.

What is not modelled: memory that ``record_stream`` names is handed out when those streams are done, which depends on
the timing. A program that gets such memory may do nothing with the former buffer but what ``record_stream`` was told
of: then it is as if the new one had memory of its own.

The simulated GPU orders more than NCCL does in two things: a collective starts when its last member has arrived, and
after the one that its group was given before. ``Oracle(..., together=True)`` has both too. Its orders are those that
can be executed there.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

CELLS = 4  # numbers in a buffer
(POISON,) = struct.unpack("f", b"\xff" * 4)  # what memory holds that was never used, a NaN
STREAMS = ("compute", "one", "two")
BUFFERS = "abc"
EVENTS = ("red", "blue")
PARTS: dict[str, tuple[int, ...]] = {
    "": (0, 1, 2, 3),
    "[:2]": (0, 1),
    "[2:]": (2, 3),
    "[::2]": (0, 2),
    "[1::2]": (1, 3),
    "[1]": (1,),
    "[0]": (0,),
}
DENSE = ("", "[:2]", "[2:]", "[1]", "[0]")
_BARRIER = "a barrier's number"

Memory = list[float]


class View(NamedTuple):
    """A part of a buffer: ``a``, ``a[:2]``, ..."""

    buffer: str
    part: str = ""

    def __str__(self) -> str:
        return self.buffer + self.part


class Side(NamedTuple):
    """One rank's part in a collective."""

    stream: str
    reads: View | None
    writes: View | None
    waits: bool = False  # without async_op, so on the current stream


class Answers(NamedTuple):
    """What a run told one rank: what queries answered, and by the numbers of buffers whose memory they got."""

    queries: tuple[bool, ...] = ()
    formers: Mapping[int, int] = {}


class Line(NamedTuple):
    """What one rank's host does next; a collective is a line of all ranks (``rank`` is -1)."""

    rank: int
    what: str
    args: tuple[Any, ...]


class Program(NamedTuple):
    """``owners``: the stream on which each buffer is allocated at first. The lines are those of all ranks."""

    owners: tuple[str, ...]
    lines: tuple[Line, ...]
    world: int = 1

    @property
    def first_line(self) -> int:
        """The number of the first line in the source."""
        return len(self.owners) + 2

    @property
    def meets(self) -> bool:
        """Are there collectives?"""
        return self.world > 1 or any(line.rank < 0 for line in self.lines)

    def source(self, rank: int) -> str:
        """The rank's program in Python. Lines keep their numbers; those of other ranks are empty."""
        made = [
            f"with on({stream}): {name} = torch.arange({_first(rank, at)}, {_first(rank, at) + CELLS}, device='cuda')"
            for at, (name, stream) in enumerate(zip(BUFFERS, self.owners, strict=False))
        ]
        told = [_python(line, rank) if line.rank in (rank, -1) else "" for line in self.lines]
        return "\n".join([*made, "torch.cuda.synchronize()", *told]) + "\n"


def _first(rank: int, buffer: int) -> float:
    return 1.0 + CELLS * buffer + 100 * rank


def _python(line: Line, rank: int) -> str:
    match line.what, *line.args:
        case ("copy" | "add") as what, stream, target, source:
            return f"with on({stream}): {target}.{what}_({source})"
        case "scale", stream, target:
            return f"with on({stream}): {target}.mul_(3)"
        case "new", stream, name, value:
            return f"with on({stream}): {name} = torch.full(({CELLS},), {value}, device='cuda')"
        case "empty", stream, name:
            return f"with on({stream}): {name} = torch.empty({CELLS}, device='cuda')"
        case "drop", name:
            return f"del {name}"
        case "keep", name, stream:
            return f"{name}.record_stream({stream})"
        case "read", stream, view:
            return f"with on({stream}): seen.append({view}.{'item' if view.part == '[1]' else 'tolist'}())"
        case "record", event, stream:
            return f"{event}.record({stream})"
        case "wait", stream, event:
            return f"{stream}.wait_event({event})"
        case "order", later, earlier:
            return f"{later}.wait_stream({earlier})"
        case "synchronize", thing:
            return "torch.cuda.synchronize()" if thing == "device" else f"{thing}.synchronize()"
        case "ask", thing:
            return f"answers.append({thing}.query())"
        case "await", stream, work:
            return f"with on({stream}): works[{work}].wait()"
        case "ask work", work:
            return f"answers.append(works[{work}].is_completed())"
        case "barrier", streams:
            return f"with on({streams[rank]}): works.append(world.barrier()); works[-1].wait()"
        case "collective", kind, channel, root, sides:
            side: Side = sides[rank]
            call = _call(kind, channel.split()[0], root, side, rank)
            return f"with on({side.stream}): {call if side.waits else f'works.append({call})'}"
    raise AssertionError(line)


def _call(kind: str, group: str, root: int, side: Side, rank: int) -> str:
    how = f"group={group}" + ("" if side.waits else ", async_op=True")
    match kind:
        case "all_reduce":
            return f"dist.all_reduce({side.reads}, {how})"
        case "broadcast":
            return f"dist.broadcast({side.reads or side.writes}, {root}, {how})"
        case "send":
            return (
                f"dist.isend({side.reads}, {1 - root}, {group})"
                if side.reads
                else f"dist.irecv({side.writes}, {root}, {group})"
            )
        case "all_gather":
            return f"dist.all_gather_single({side.writes}, {side.reads}, {how})"
    return f"dist.reduce_scatter_single({side.writes}, {side.reads}, {how})"


class Access(NamedTuple):
    """Cells of a block, read or written by a node. ``cells``: of the memory, in which several blocks may have some."""

    rank: int
    line: int
    part: str  # as of a node's key
    what: str  # read, write
    node: int
    block: int
    view: str
    cells: frozenset[int]

    def covers(self, other: Access) -> bool:
        """All bytes of ``other``, of the same block. Of parts with holes only the same one counts."""
        return self.view == other.view or (self.view in DENSE and self.cells >= other.cells)

    def conflicts(self, other: Access) -> bool:
        return "write" in (self.what, other.what) and self.rank == other.rank and bool(self.cells & other.cells)


class Pair(NamedTuple):
    """Two accesses, each by its line, which part of that it is, and what it does; the one issued first stands first.

    ``block``: of the second. The first one's is this or one that had its memory before.
    """

    rank: int
    block: int
    first: tuple[int, str, str]
    second: tuple[int, str, str]


class Node(NamedTuple):
    """Something that happens to memory in one moment.

    ``key``: the rank, the line and what it is: kernel, read (the host's own), arrive or leave (a collective's start and
    end). Or a moment of a block, at which nothing happens to memory that the program sees: back (the streams are done
    that ``record_stream`` named), inherit and inherited (another one is made, which may have got that memory).
    """

    key: tuple[int, int, str]
    before: int  # the nodes that come before it in every order, as bits
    act: Callable[[Memory], None]


class _Buffer:
    """A block of one rank. ``held``: by how many collectives."""

    def __init__(self, number: int, owner: str, base: int, cells: int) -> None:
        self.number, self.owner, self.base = number, owner, base
        self.cells = frozenset(range(base, base + cells))
        self.recorded: set[str] = set()
        self.held = 0
        self.dropped = False


class _Work(NamedTuple):
    """A collective as its host sees it: the position of its end, what it holds until somebody has waited for it."""

    end: int
    holds: list[_Buffer]
    blocks: bool  # the host, when somebody waits for it


class _Host:
    """One rank: what its host, streams and events have behind them, as bits."""

    def __init__(self, rank: int, answers: Answers | None) -> None:
        self.rank = rank
        self.known = 0
        self.streams: dict[str, int] = {}
        self.events: dict[str, int] = {}
        self.works: list[_Work] = []
        self.buffers: dict[str, _Buffer] = {}
        self.blocks: list[_Buffer] = []
        self.last: dict[str, int] = {}  # by channel: the end of its last collective
        self.answers = None if answers is None else iter(answers.queries)
        self.formers = {} if answers is None else answers.formers

    def position(self, stream: str) -> int:
        return self.streams.get(stream, 0) | self.known

    def answer(self) -> bool:
        return self.answers is not None and next(self.answers)


class Oracle:
    """All that may happen when the program runs. ``answers``: by rank what the run told (None: no memory passes on, and
    all queries answered False)."""

    def __init__(self, program: Program, answers: Sequence[Answers] | None = None, *, together: bool = False) -> None:
        self.nodes: list[Node] = []
        self.accesses: list[Access] = []  # of each rank in the order of issue
        self.memory: Memory = []
        self.learned: list[list[tuple[int, ...]]] = [[] for _ in range(program.world)]  # by rank: what the host reads
        self._together = together
        self._hosts = [_Host(rank, None if answers is None else answers[rank]) for rank in range(program.world)]
        for host in self._hosts:
            for at, (name, owner) in enumerate(zip(BUFFERS, program.owners, strict=False)):
                buffer = host.buffers[name] = self._allocate(host, owner)
                for cell in range(CELLS):
                    self.memory[buffer.base + cell] = _first(host.rank, at) + cell
        for number, line in enumerate(program.lines, program.first_line):
            if line.rank < 0:
                self._meet(number, line)
            else:
                self._tell(self._hosts[line.rank], number, line)
        self.left = [  # by rank: the cells of what is there at the end
            [self._cells(host, View(name)) for name in BUFFERS if name in host.buffers] for host in self._hosts
        ]
        self.later = [0] * len(self.nodes)  # by node, after explore(): its rank's that some order has after it

    # -- the orders -------------------------------------------------------------------------------------

    def more_than(self, limit: int) -> bool:
        """May :meth:`explore` have more orders than this?"""
        ways = 1
        for host in self._hosts:
            ways *= self._ways(self._of(host.rank), limit // ways)
            if ways > limit:
                return True
        return False

    def _of(self, rank: int) -> int:
        """The nodes of a rank."""
        return sum(1 << at for at, node in enumerate(self.nodes) if node.key[0] == rank)

    def _ways(self, mine: int, limit: int) -> int:
        """In how many orders some nodes can stand, by what they say of each other. More than ``limit`` is enough."""
        waits = [(1 << at, node.before & mine) for at, node in enumerate(self.nodes) if mine >> at & 1]
        layer = {0: 1}
        for _ in waits:
            after: dict[int, int] = {}
            for done, ways in layer.items():
                for node, needed in waits:
                    if not done & node and not needed & ~done:
                        after[done | node] = after.get(done | node, 0) + ways
            layer = after
            if sum(layer.values()) > limit:  # each beginning of an order has at least one end
                break
        return sum(layer.values())

    def explore(self, visit: Callable[[list[int], Memory], None]) -> None:
        """Execute every legal order; ``visit`` gets each, and the memory it ends with.

        What one rank does leaves the memory of others alone, so of orders in which each rank does the same in the same
        order one is enough (sleep sets: Godefroid, Partial-Order Methods for the Verification of Concurrent Systems,
        1996, chapter 5).
        """
        nodes, later = self.nodes, self.later
        whole = (1 << len(nodes)) - 1
        mine = [self._of(host.rank) for host in self._hosts]
        order: list[int] = []

        def go(done: int, asleep: int, memory: Memory) -> None:
            if done == whole:
                visit(order, memory)
                return
            for at, node in enumerate(nodes):
                if (done | asleep) >> at & 1 or node.before & ~done:
                    continue
                now = done | 1 << at
                own = mine[node.key[0]]
                later[at] |= own & ~now
                changed = memory.copy()
                node.act(changed)
                order.append(at)
                go(now, asleep & ~own, changed)
                order.pop()
                asleep |= 1 << at

        go(0, 0, self.memory)

    def run(self, order: Iterable[int]) -> Memory:
        """Execute one order."""
        memory = self.memory.copy()
        for node in order:
            self.nodes[node].act(memory)
        return memory

    def arranged(self, order: Sequence[int]) -> list[int] | None:
        """The legal order in which each rank does the same in the same order; None if there is none.

        What one rank does leaves the memory of others alone, so how ranks stand to each other matters only as far as
        a rule says: at one instant, the accelerator may have them either way round.
        """
        queues = [[node for node in order if self.nodes[node].key[0] == host.rank] for host in self._hosts]
        arranged: list[int] = []
        done = 0
        while any(queues):
            ready = [queue for queue in queues if queue and not self.nodes[queue[0]].before & ~done]
            if not ready:
                return None
            arranged.append(ready[0].pop(0))
            done |= 1 << arranged[-1]
        return arranged

    # -- the races (after explore) ----------------------------------------------------------------------

    def reversible(self, first: Access, second: Access) -> bool:
        """Does some order have ``second``, which was issued later, before ``first``?"""
        return bool(self.later[second.node] >> first.node & 1)

    def races(self) -> dict[Pair, tuple[Access, Access]]:
        """The pairs of accesses that conflict, and that two legal orders have in different orders."""
        return {_named(first, second): (first, second) for first, second in self._racing()}

    def _racing(self) -> list[tuple[Access, Access]]:
        return [
            (first, second)
            for at, second in enumerate(self.accesses)
            for first in self.accesses[:at]
            if first.conflicts(second) and self.reversible(first, second)
        ]

    def told(self) -> set[Pair]:
        """The races without those that follow from another one with the same second access, or the same first one."""
        at = {access: place for place, access in enumerate(self.accesses)}
        return {
            _named(first, second)
            for first, second in self._racing()
            if not any(self._stands_for(between, first) for between in self.accesses[at[first] + 1 : at[second]])
        }

    def _stands_for(self, newer: Access, older: Access) -> bool:
        """Whatever races with the older access later: is the race with the newer one told instead?

        Of one block: if the newer one comes after the older in every order, covers its bytes, and was issued later (a
        read only counts for a read): what cures the one cures the other. Of a block that got the older one's memory the
        same, by bytes without holes; and there a race of the two stands for all later ones with the older access, which
        fail for the same reason.
        """
        if newer.rank != older.rank or not newer.cells & older.cells:
            return False
        ordered = not self.reversible(older, newer)
        counts = ordered and (newer.what == "write" or older.what == "read")
        if newer.block == older.block:
            return counts and newer.covers(older)
        if newer.conflicts(older) and not ordered:
            return True
        # Bytes that did not pass on do not count; only of a part with holes all of it does.
        block = self._hosts[newer.rank].blocks[newer.block]
        left = older.cells & block.cells if older.view in DENSE else older.cells
        return counts and newer.view in DENSE and left <= newer.cells

    # -- what the hosts do ------------------------------------------------------------------------------

    def _tell(self, host: _Host, number: int, line: Line) -> None:
        match line.what, *line.args:
            case "copy", _, target, source if target == source and not target.part:
                pass  # a tensor copied to itself is no launch (Copy.cpp, copy_impl); two views of it are
            case "copy" | "add" | "scale", stream, target, *sources:
                to = self._cells(host, target)
                taken = self._cells(host, sources[0]) if sources else to
                node = self._issue(host, stream, number, "kernel", _kernel(line.what, to, taken))
                if line.what != "copy":  # it reads what it changes
                    self._touch(host, node, "read", target)
                for source in sources:
                    self._touch(host, node, "read", source)
                self._touch(host, node, "write", target)
            case "new" | "empty", stream, name, *value:
                before = host.buffers.get(name)
                host.buffers[name] = self._allocate(host, stream)
                if value:
                    act = _fill(self._cells(host, View(name)), value[0])
                    self._touch(host, self._issue(host, stream, number, "kernel", act), "write", View(name))
                if before is not None:  # the name goes over to the new one when that is there
                    self._drop(host, before)
            case "drop", name:
                self._drop(host, host.buffers.pop(name))
            case "keep", name, stream:
                host.buffers[name].recorded.add(stream)
            case "read", stream, view:
                cells = self._cells(host, view)
                slots = self._scratch(len(cells))
                # One number the host takes itself when the stream is there; more are copied by the stream.
                part = "read" if view.part == "[1]" else "kernel"
                node = self._issue(host, stream, number, part, _kernel("copy", slots, cells))
                self._touch(host, node, "read", view)
                self.learned[host.rank].append(slots)
                host.known |= host.position(stream)
            case "record", event, stream:
                host.events[event] = host.position(stream)
            case "wait", stream, event:
                host.streams[stream] = host.position(stream) | host.events.get(event, 0)
            case "order", later, earlier:
                host.streams[later] = host.position(later) | host.position(earlier)
            case "synchronize", "device":
                for position in host.streams.values():
                    host.known |= position
            case "synchronize", thing:
                host.known |= self._asked(host, thing)
            case "ask", thing:
                asked = thing not in EVENTS or thing in host.events
                if host.answer() and asked:
                    host.known |= self._asked(host, thing)
            case "await", stream, work:
                self._await(host, stream, host.works[work])
            case "ask work", work:
                if host.answer():
                    host.known |= host.works[work].end
            case _:
                raise AssertionError(line)

    def _asked(self, host: _Host, thing: str) -> int:
        return host.events.get(thing, 0) if thing in EVENTS else host.position(thing)

    def _await(self, host: _Host, stream: str, work: _Work) -> None:
        host.streams[stream] = host.position(stream) | work.end
        if work.blocks:
            host.known |= host.position(stream)
        for buffer in work.holds:
            buffer.held -= 1
        work.holds.clear()

    def _meet(self, number: int, line: Line) -> None:
        """All ranks take part in a collective."""
        barrier = line.what == "barrier"
        if barrier:
            kind, channel, root = "all_reduce", "world", -1
            sides = [
                self._number_of_its_own(host, stream, number)
                for host, stream in zip(self._hosts, line.args[0], strict=True)
            ]
        else:
            kind, channel, root, sides = line.args
        streams, ready = [], []  # by rank: where it runs, and what comes before its start by this rank's own doing
        for host, side in zip(self._hosts, sides, strict=True):
            streams.append(side.stream if side.waits else channel)
            host.streams[streams[-1]] = host.position(streams[-1]) | host.position(side.stream)
            ready.append(host.position(streams[-1]) | host.last.get(channel, 0))
        everyone = 0
        for one in ready if self._together else ():
            everyone |= one
        started, stages = [], []
        for host, side, stream in zip(self._hosts, sides, streams, strict=True):
            cells = self._cells(host, side.reads) if side.reads else ()
            stages.append(self._scratch(len(cells)))
            started.append(self._issue(host, stream, number, "arrive", _kernel("copy", stages[-1], cells), everyone))
            if side.reads:
                self._touch(host, started[-1], "read", side.reads)
        for rank, (host, side, stream) in enumerate(zip(self._hosts, sides, streams, strict=True)):
            after = 0
            for peer, node in enumerate(started):
                if kind not in ("broadcast", "send") or peer in (root, rank) or self._together:
                    after |= self.nodes[node].before | 1 << node
            cells = self._cells(host, side.writes) if side.writes else ()
            node = self._issue(host, stream, number, "leave", _exchange(kind, root, rank, cells, stages), after)
            host.last[channel] = host.streams[stream]
            if side.writes:
                self._touch(host, node, "write", side.writes)
            if not side.waits:
                self._hold(host, kind, side, host.streams[stream], barrier)
            if barrier:
                self._await(host, side.stream, host.works[-1])
                del host.buffers[_BARRIER]

    def _number_of_its_own(self, host: _Host, stream: str, number: int) -> Side:
        """What a barrier sums up: new memory of the current stream, which sets it to 0."""
        host.buffers[_BARRIER] = self._allocate(host, stream, 1)
        one = View(_BARRIER, "[0]")
        self._touch(host, self._issue(host, stream, number, "kernel", _fill(self._cells(host, one), 0.0)), "write", one)
        return Side(stream, one, one)

    def _hold(self, host: _Host, kind: str, side: Side, end: int, barrier: bool) -> None:
        """The work stays, and with it its result, to the end; its inputs until somebody has waited for it."""
        views = [view for view in (side.reads, side.writes) if view is not None]
        result = side.writes or (side.reads if kind in ("broadcast", "send") else None)
        if result is not None:
            host.buffers[result.buffer].held += 1
        holds = [host.buffers[view.buffer] for view in views]
        for buffer in holds:
            buffer.held += 1
        host.works.append(_Work(end, holds, barrier))

    def _issue(
        self, host: _Host, stream: str, number: int, part: str, act: Callable[[Memory], None], after: int = 0
    ) -> int:
        node = len(self.nodes)
        self.nodes.append(Node((host.rank, number, part), host.position(stream) | after, act))
        host.streams[stream] = self.nodes[node].before | 1 << node
        return node

    def _touch(self, host: _Host, node: int, what: str, view: View) -> None:
        _, number, part = self.nodes[node].key
        cells = frozenset(self._cells(host, view))
        block = host.buffers[view.buffer].number
        access = Access(host.rank, number, part, what, node, block, view.part, cells)
        if access not in self.accesses[-2:]:  # what is added to itself is read once
            self.accesses.append(access)

    # -- memory -----------------------------------------------------------------------------------------

    def _allocate(self, host: _Host, owner: str, cells: int = CELLS) -> _Buffer:
        """A block that nobody calls by a name yet."""
        number = len(host.blocks)
        former = host.blocks[host.formers[number]] if number in host.formers else None
        base = len(self.memory)
        if former is not None:
            assert former.dropped and not former.held, "memory that is in use was handed out"
            assert former.owner == owner, "memory of one stream was handed out on another"
        if former is not None and not former.recorded - {owner}:
            base = former.base
        else:
            self.memory += [POISON] * CELLS
        if former is not None and former.recorded - {owner}:
            self.nodes.append(Node((host.rank, number, "inherit"), host.known, _nothing))
            host.known |= 1 << len(self.nodes) - 1
            self._issue(host, owner, number, "inherited", _nothing)
        host.blocks.append(_Buffer(number, owner, base, cells))
        return host.blocks[-1]

    def _drop(self, host: _Host, buffer: _Buffer) -> None:
        buffer.dropped = True
        others = buffer.recorded - {buffer.owner}
        if others and buffer.number in host.formers.values():
            before = host.known
            for stream in others:
                before |= host.position(stream)
            self.nodes.append(Node((host.rank, buffer.number, "back"), before, _nothing))

    def _scratch(self, count: int) -> tuple[int, ...]:
        """Cells that no program sees."""
        self.memory += [POISON] * count
        return tuple(range(len(self.memory) - count, len(self.memory)))

    def _cells(self, host: _Host, view: View) -> tuple[int, ...]:
        base = host.buffers[view.buffer].base
        return tuple(base + cell for cell in PARTS[view.part])


def _named(first: Access, second: Access) -> Pair:
    """Two reads of one operation have one name."""
    sides = [(one.line, one.part, one.what) for one in (first, second)]
    return Pair(second.rank, second.block, *sides)


def _nothing(memory: Memory) -> None:
    """A moment."""


def _kernel(what: str, to: tuple[int, ...], taken: tuple[int, ...]) -> Callable[[Memory], None]:
    def act(memory: Memory) -> None:
        values = [memory[cell] for cell in taken]
        for cell, value in zip(to, values, strict=True):
            memory[cell] = value if what == "copy" else memory[cell] + value if what == "add" else 3 * value

    return act


def _fill(cells: tuple[int, ...], value: float) -> Callable[[Memory], None]:
    def act(memory: Memory) -> None:
        for cell in cells:
            memory[cell] = value

    return act


def _exchange(
    kind: str, root: int, rank: int, to: tuple[int, ...], stages: list[tuple[int, ...]]
) -> Callable[[Memory], None]:
    def act(memory: Memory) -> None:
        given = [[memory[cell] for cell in stage] for stage in stages]
        match kind:
            case "all_reduce":
                values = [sum(column) for column in zip(*given, strict=True)]
            case "all_gather":
                values = [value for one in given for value in one]
            case "reduce_scatter":
                start = rank * len(to)
                values = [sum(column) for column in zip(*given, strict=True)][start : start + len(to)]
            case _:  # broadcast, send
                values = given[root] if rank != root else []
        for cell, value in zip(to, values, strict=True):
            memory[cell] = value

    return act
