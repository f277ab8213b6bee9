"""Little programs of streams, events and collectives, and all orders in which they may legally take effect.

A :class:`Program` is a list of lines. Each is rendered as a line of Python for the simulated GPU
(:meth:`Program.source`), and is told to the :class:`Oracle`, which knows nothing of the accelerator, of traces or of
detectors: it holds, for every access, the set of those that come before it by the rules of CUDA streams and NCCL,
and a list of numbers that stands for the memory.

What the rules are:

* the host issues in order; a stream executes in order, and nothing before it was issued,
* a wait puts a stream behind what an event has recorded last, a host wait the host (a ``query()`` that answered True is
  one: the answer is the run's), a read by the host is work on the current stream and a wait for it,
* a collective is work on a stream of its own, behind the stream it was issued from. It takes its inputs in when it
  starts and writes its outputs when it ends; it ends after those members have started whose inputs it gets,
* memory that is let go may be anything after what its own stream and the recorded ones were given until then. A
  collective holds its tensors until somebody has waited for it.

The simulated GPU orders more than NCCL does in one thing: a collective starts when its last member has arrived.
``Oracle(..., together=True)`` has that too. Its orders are those that can be executed there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

CELLS = 4  # numbers in a buffer
NAN = float("nan")
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
}
DENSE = ("", "[:2]", "[2:]", "[1]")

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

    def source(self, rank: int) -> str:
        """The rank's program in Python. Lines keep their numbers; those of other ranks are empty."""
        made = [
            f"with on({stream}): {name} = torch.arange({_first(rank, at):.1f}, {_first(rank, at) + CELLS:.1f})"
            for at, (name, stream) in enumerate(zip(BUFFERS, self.owners, strict=False))
        ]
        told = [_python(line, rank) if line.rank in (rank, -1) else "" for line in self.lines]
        return "\n".join([*made, "device.synchronize()", *told]) + "\n"


def _first(rank: int, buffer: int) -> float:
    return 1.0 + CELLS * buffer + 100 * rank


def _python(line: Line, rank: int) -> str:
    match line.what, *line.args:
        case ("copy" | "add") as what, stream, target, source:
            return f"with on({stream}): {target}.{what}_({source})"
        case "scale", stream, target:
            return f"with on({stream}): {target}.mul_(3)"
        case "new", stream, name, value:
            return f"with on({stream}): {name} = torch.full(({CELLS},), {value})"
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
            return f"{thing}.synchronize()"
        case "ask", thing:
            return f"answers.append({thing}.query())"
        case "await", stream, work:
            return f"with on({stream}): works[{work}].wait()"
        case "ask work", work:
            return f"answers.append(works[{work}].is_completed())"
        case "barrier", streams:
            return f"with on({streams[rank]}): works.append(world.barrier()); works[-1].wait()"
        case "collective", kind, group, root, sides:
            side: Side = sides[rank]
            return f"with on({side.stream}): works.append({group.split()[0]}.{_call(kind, root, side, rank)})"
    raise AssertionError(line)


def _call(kind: str, root: int, side: Side, rank: int) -> str:
    match kind:
        case "all_reduce":
            return f"allreduce([{side.reads}])"
        case "broadcast":
            return f"broadcast([{side.reads}], root({root}))"
        case "send":
            return f"send([{side.reads}], {1 - root}, 0)" if rank == root else f"recv([{side.writes}], {root}, 0)"
    return f"{kind}_single({side.writes}, {side.reads})"


class Access(NamedTuple):
    """Cells of a block, read or written by a node. ``line``: -1 for the free of the block."""

    rank: int
    line: int
    what: str  # read, write, free
    node: int
    block: int
    view: str

    @property
    def cells(self) -> frozenset[int]:
        return frozenset(PARTS[self.view])

    def covers(self, other: Access) -> bool:
        """All bytes of ``other``. Of parts with holes only the same one counts."""
        return self.view == other.view or (self.view in DENSE and self.cells >= other.cells)


class Pair(NamedTuple):
    """Two accesses of one block; the one issued first stands first."""

    rank: int
    block: int
    first: tuple[int, str]
    second: tuple[int, str]


class Node(NamedTuple):
    """Something that happens to memory in one moment.

    ``key``: the rank, the line (of a free: the block) and what it is: kernel, read (by the host), arrive or leave (a
    collective's start and end), free.
    """

    key: tuple[int, int, str]
    before: int  # the nodes that come before it in every order, as bits
    act: Callable[[Memory], None]


class _Buffer:
    """A block of one rank. ``held``: how many collectives that nobody has waited for hold it."""

    def __init__(self, number: int, owner: str, base: int) -> None:
        self.number, self.owner, self.base = number, owner, base
        self.recorded: set[str] = set()
        self.held = 0
        self.dropped = self.freed = False


class _Work(NamedTuple):
    """A collective as its host sees it: the position of its end, and what it holds until somebody has waited for it."""

    end: int
    holds: list[_Buffer]


class _Host:
    """One rank: what its host, streams and events have behind them, as bits."""

    def __init__(self, rank: int, answers: Iterable[bool] | None) -> None:
        self.rank = rank
        self.known = 0
        self.streams: dict[str, int] = {}
        self.events: dict[str, int] = {}
        self.works: list[_Work] = []
        self.buffers: dict[str, _Buffer] = {}
        self.blocks = 0
        self.answers = None if answers is None else iter(answers)

    def position(self, stream: str) -> int:
        return self.streams.get(stream, 0) | self.known

    def answer(self) -> bool:
        return self.answers is not None and next(self.answers)


class Oracle:
    """All that may happen when the program runs. ``answers``: by rank what queries answered (None: False, all)."""

    def __init__(
        self, program: Program, answers: Sequence[Sequence[bool]] | None = None, *, together: bool = False
    ) -> None:
        self.nodes: list[Node] = []
        self.accesses: list[Access] = []  # of each rank in the order of issue
        self.memory: Memory = []
        self.learned: list[list[tuple[int, ...]]] = [[] for _ in range(program.world)]  # by rank: what the host reads
        self._together = together
        self._hosts = [_Host(rank, None if answers is None else answers[rank]) for rank in range(program.world)]
        for host in self._hosts:
            for at, (name, owner) in enumerate(zip(BUFFERS, program.owners, strict=False)):
                self._allocate(host, name, owner, [_first(host.rank, at) + cell for cell in range(CELLS)])
        for number, line in enumerate(program.lines, program.first_line):
            if line.rank < 0:
                self._meet(number, line)
            else:
                self._tell(self._hosts[line.rank], number, line)
        self.left = [  # by rank: the cells of what is there at the end
            [self._cells(host, View(name)) for name in BUFFERS if name in host.buffers] for host in self._hosts
        ]
        self.later = [0] * len(self.nodes)  # by node, after explore(): the nodes that some order has after it

    # -- the orders -------------------------------------------------------------------------------------

    def more_than(self, limit: int) -> bool:
        """Are there more legal orders than this?"""
        before = [node.before for node in self.nodes]
        layer = {0: 1}
        for _ in before:
            after: dict[int, int] = {}
            for done, ways in layer.items():
                for node, needed in enumerate(before):
                    if not done >> node & 1 and not needed & ~done:
                        after[done | 1 << node] = after.get(done | 1 << node, 0) + ways
            layer = after
            if sum(layer.values()) > limit:  # each beginning of an order has at least one end
                return True
        return False

    def explore(self, visit: Callable[[list[int], Memory], None]) -> None:
        """Execute every legal order; ``visit`` gets each, and the memory it ends with."""
        nodes, later = self.nodes, self.later
        whole = (1 << len(nodes)) - 1
        order: list[int] = []

        def go(done: int, memory: Memory) -> None:
            if done == whole:
                visit(order, memory)
                return
            for at, node in enumerate(nodes):
                if done >> at & 1 or node.before & ~done:
                    continue
                now = done | 1 << at
                later[at] |= whole & ~now
                changed = memory.copy()
                node.act(changed)
                order.append(at)
                go(now, changed)
                order.pop()

        go(0, self.memory)

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
        return {
            Pair(first.rank, first.block, (first.line, first.what), (second.line, second.what)): (first, second)
            for at, second in enumerate(self.accesses)
            for first in self.accesses[:at]
            if (first.rank, first.block) == (second.rank, second.block)
            and (first.what, second.what) != ("read", "read")
            and first.cells & second.cells
            and self.reversible(first, second)
        }

    def told(self) -> set[Pair]:
        """The races without those that follow from another one with the same second access.

        A race of A with C follows from that of B with C if B comes after A in every order, covers A's bytes, and was
        issued between the two (a read only counts for a read): what cures it cures both.
        """
        return {
            pair
            for pair, (first, second) in self.races().items()
            if not any(
                between.covers(first)
                and (between.what == "write" or first.what == "read")
                and not self.reversible(first, between)
                for between in self.accesses[self.accesses.index(first) + 1 : self.accesses.index(second)]
                if (between.rank, between.block) == (first.rank, first.block)
            )
        }

    # -- what the hosts do ------------------------------------------------------------------------------

    def _tell(self, host: _Host, number: int, line: Line) -> None:
        match line.what, *line.args:
            case "copy" | "add" | "scale", stream, target, *sources:
                to = self._cells(host, target)
                taken = self._cells(host, sources[0]) if sources else to
                act = _kernel(line.what, to, taken)
                node = self._issue(host, stream, number, "kernel", act)
                self._touch(host, number, node, sources[0] if sources else None, target)
            case "new", stream, name, value:
                before = host.buffers.get(name)
                self._allocate(host, name, stream, [NAN] * CELLS)
                node = self._issue(host, stream, number, "kernel", _fill(self._cells(host, View(name)), value))
                self._touch(host, number, node, None, View(name))
                self._drop(host, before)
            case "drop", name:
                self._drop(host, host.buffers.pop(name))
            case "keep", name, stream:
                host.buffers[name].recorded.add(stream)
            case "read", stream, view:
                cells = self._cells(host, view)
                slots = self._scratch(len(cells))
                node = self._issue(host, stream, number, "read", _kernel("copy", slots, cells))
                self._touch(host, number, node, view, None)
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
                for work in host.works:
                    self._release(host, work)
            case "synchronize", thing:
                host.known |= self._asked(host, thing)
            case "ask", thing:
                asked = thing not in EVENTS or thing in host.events
                if host.answer() and asked:
                    host.known |= self._asked(host, thing)
            case "await", stream, work:
                host.streams[stream] = host.position(stream) | host.works[work].end
                self._release(host, host.works[work])
            case "ask work", work:
                if host.answer():
                    host.known |= host.works[work].end
            case _:
                raise AssertionError(line)

    def _asked(self, host: _Host, thing: str) -> int:
        return host.events.get(thing, 0) if thing in EVENTS else host.position(thing)

    def _meet(self, number: int, line: Line) -> None:
        """All ranks take part in a collective."""
        if line.what == "barrier":
            kind, group, root = "barrier", "world", -1
            sides = [Side(stream, None, None) for stream in line.args[0]]
        else:
            kind, group, root, sides = line.args
        started, stages = [], []
        for host, side in zip(self._hosts, sides, strict=True):
            host.streams[group] = host.position(group) | host.position(side.stream)
        everyone = 0
        for host in self._hosts:
            everyone |= host.position(group)
        for host, side in zip(self._hosts, sides, strict=True):
            cells = self._cells(host, side.reads) if side.reads else ()
            stages.append(self._scratch(len(cells)))
            after = everyone if self._together else 0
            act = _kernel("copy", stages[-1], cells)
            started.append(self._issue(host, group, number, "arrive", act, after))
            self._touch(host, number, started[-1], side.reads, None)
        for rank, (host, side) in enumerate(zip(self._hosts, sides, strict=True)):
            after = 0
            for peer, node in enumerate(started):
                gets = {"broadcast": peer == root, "send": peer == root and rank != root}.get(kind, True)
                if gets or self._together:
                    after |= self.nodes[node].before | 1 << node
            cells = self._cells(host, side.writes) if side.writes else ()
            node = self._issue(host, group, number, "leave", _exchange(kind, root, rank, cells, stages), after)
            self._touch(host, number, node, None, side.writes)
            holds = [host.buffers[view.buffer] for view in (side.reads, side.writes) if view is not None]
            for buffer in holds:
                buffer.held += 1
            host.works.append(_Work(host.streams[group], holds))
            if kind == "barrier":
                host.streams[side.stream] = host.position(side.stream) | host.streams[group]
                host.known |= host.streams[group]

    def _issue(
        self, host: _Host, stream: str, number: int, part: str, act: Callable[[Memory], None], after: int = 0
    ) -> int:
        node = len(self.nodes)
        self.nodes.append(Node((host.rank, number, part), host.position(stream) | after, act))
        host.streams[stream] = self.nodes[node].before | 1 << node
        return node

    def _touch(self, host: _Host, number: int, node: int, reads: View | None, writes: View | None) -> None:
        for view, what in ((reads, "read"), (writes, "write")):
            if view is not None:
                block = host.buffers[view.buffer].number
                self.accesses.append(Access(host.rank, number, what, node, block, view.part))

    # -- memory -----------------------------------------------------------------------------------------

    def _allocate(self, host: _Host, name: str, owner: str, values: list[float]) -> None:
        host.buffers[name] = _Buffer(host.blocks, owner, len(self.memory))
        host.blocks += 1
        self.memory += values

    def _scratch(self, count: int) -> tuple[int, ...]:
        """Cells that no program sees."""
        self.memory += [NAN] * count
        return tuple(range(len(self.memory) - count, len(self.memory)))

    def _cells(self, host: _Host, view: View) -> tuple[int, ...]:
        base = host.buffers[view.buffer].base
        return tuple(base + cell for cell in PARTS[view.part])

    def _drop(self, host: _Host, buffer: _Buffer | None) -> None:
        if buffer is not None:
            buffer.dropped = True
            self._free(host, buffer)

    def _release(self, host: _Host, work: _Work) -> None:
        holds = list(work.holds)
        work.holds.clear()
        for buffer in holds:
            buffer.held -= 1
        for buffer in holds:
            self._free(host, buffer)

    def _free(self, host: _Host, buffer: _Buffer) -> None:
        if not buffer.dropped or buffer.held or buffer.freed:
            return
        buffer.freed = True
        before = host.known
        for stream in (buffer.owner, *buffer.recorded):
            before |= host.position(stream)
        cells = tuple(range(buffer.base, buffer.base + CELLS))
        self.nodes.append(Node((host.rank, buffer.number, "free"), before, _fill(cells, NAN)))
        self.accesses.append(Access(host.rank, -1, "free", len(self.nodes) - 1, buffer.number, ""))


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
            case "broadcast":
                values = given[root]
            case "send":
                values = given[root] if rank != root else []
            case _:
                values = []
        for cell, value in zip(to, values, strict=True):
            memory[cell] = value

    return act
