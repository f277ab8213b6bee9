"""Executes a recording again, in one process, under any timing that keeps its ordering edges.

Every effect of every rank takes place on real memory, in the order of virtual time. The host's program does not run:
its work is recorded. So a replay is exact up to the first value that the *host* read and that differs from the recorded
one (:class:`Departure`): there the program might have taken another branch, and later values are what the recorded work
would have computed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from streamrace.replay import device_work, work
from streamrace.replay.device_timing import DeviceTiming
from streamrace.replay.faults import ReplayError
from streamrace.replay.graph import Graph
from streamrace.replay.host import Effect
from streamrace.replay.memory import Arena
from streamrace.replay.names import OperationName
from streamrace.replay.placement import Hold, Holds
from streamrace.replay.recording import Recording
from streamrace.replay.touched import BlockKey, touched
from streamrace.replay.transfers import DeviceExchange
from streamrace.trace import wording
from streamrace.trace.records import LOOK, Call, Collective, Group, Launch, Phase, Probe, Probed, Transfer, View

READ = "read"
_MEMORIES = 6


class Departure(NamedTuple):
    """The host read a value that differs from the recorded one."""

    operation: OperationName
    recorded: Any
    value: Any


class UsedValue(NamedTuple):
    """A value that training uses: its place in the program, and its name (empty for a loss)."""

    rank: int
    probe: int
    step: int
    micro_batch: int
    phase: str
    kind: str
    name: str


@dataclass(frozen=True)
class ReplayOutcome:
    """The result of one replay.

    ``checksums``: of each of :attr:`Replayer.looks`, CRC-32. ``losses``: values by place in ``looks``. ``bad``: the
    number of values that are not finite, by place, where the checksum is not the expected one. ``order``: the places of
    all effects (:attr:`Graph.effects`) in the order in which they took place.
    """

    checksums: tuple[int, ...]
    losses: dict[int, float]
    bad: dict[int, int]
    departure: Departure | None
    order: npt.NDArray[np.int64]


@dataclass
class ValuesShown:
    """The values shown by the executed effects, by place in :attr:`Replayer.looks`; see :class:`ReplayOutcome`."""

    checksums: list[int]
    losses: dict[int, float] = field(default_factory=dict)
    bad: dict[int, int] = field(default_factory=dict)
    departure: Departure | None = None


@dataclass
class _Memory:
    """The memory of all ranks, and the action of each effect (by place) on it."""

    arena: Arena
    effects: list[work.Action]


class Hands(NamedTuple):
    """Memory as recorded, and the action of each effect (by place) on it; shown values go to :attr:`Replayer.seen`."""

    arena: Arena
    effects: list[work.Action]


class LateHolds:
    """Finds the holds that are not over in time, given an order of all effects."""

    def __init__(self, recording: Recording, graph: Graph) -> None:
        self._all = [(rank, hold) for rank, records in recording.records.items() for hold in Holds(records).all]
        backs = [graph.place(rank, "back", hold.former) for rank, hold in self._all]
        heirs = [graph.place(rank, "inherit", hold.block) for rank, hold in self._all]
        self._backs, self._heirs = np.array(backs, dtype=np.int64), np.array(heirs, dtype=np.int64)

    def late(self, order: npt.NDArray[np.int64], settled: npt.NDArray[np.bool_]) -> frozenset[tuple[int, Hold]]:
        """Return the holds whose memory had not come back when it was needed; settled blocks have no late holds."""
        if not self._all:
            return frozenset()
        when = np.empty(len(order), dtype=np.int64)
        when[order] = np.arange(len(order))
        late = np.flatnonzero((when[self._backs] > when[self._heirs]) & ~settled[self._heirs])
        return frozenset(self._all[at] for at in late.tolist())


class Replayer:
    """A recording prepared to be executed many times.

    ``looks``: the values that training uses, by rank in the order of the program; ``recorded``: their checksums in the
    live run; ``expected`` (may be set): their checksums in the run to compare with. ``settled``: by place in
    :attr:`Graph.effects`, whether the effect was executed before all replays. ``executed``: the number of executions.

    Raises :class:`ReplayError` for a recording that is damaged.
    """

    def __init__(self, recording: Recording) -> None:
        self.recording = recording
        self.graph = Graph(recording)
        self.looks: list[UsedValue] = []
        self.recorded: tuple[int, ...] = ()
        self.expected: tuple[int, ...] = ()
        self.settled = np.zeros(len(self.graph.effects), dtype=np.bool_)
        self.seen = ValuesShown([])
        self.executed = 0
        self._calls: dict[tuple[int, int], Call] = {}
        self._threads = int(recording.info.get("threads", 0))
        self._probes: dict[tuple[int, int, str], Probe] = {}
        self._places: dict[tuple[int, int, str], int] = {}  # by probe: index among the looks
        self._launches: dict[tuple[int, int], Launch] = {}
        self._parts: dict[tuple[int, int], dict[int, tuple[Collective, Transfer]]] = {}
        self._members: dict[int, tuple[int, ...]] = {}
        self._exchanges: dict[tuple[int, int], tuple[int, tuple[int, ...]]] = {}
        self.holds = LateHolds(recording, self.graph)
        self._memories: dict[frozenset[tuple[int, Hold]], _Memory] = {}  # the most recently used comes last
        self._touched: set[BlockKey] = set()
        try:
            self._read()
            arena = Arena([recording.records[rank] for rank in range(recording.world)])
            self._memory = self._as_recorded = _Memory(arena, self._bind(arena))
        except (TypeError, ValueError, LookupError, AttributeError, RuntimeError, NotImplementedError) as error:
            raise ReplayError(f"the recording cannot be replayed: {error}") from error

    # -- running ----------------------------------------------------------------------------------------

    def run(self, timing: DeviceTiming | None = None) -> ReplayOutcome:
        """Execute under ``timing`` (see :meth:`Recording.deviated`); None: as recorded."""
        return self.run_order(self.graph.timed(timing))

    def run_order(self, order: npt.NDArray[np.int64]) -> ReplayOutcome:
        """Execute the effects in ``order``, which must keep the recorded edges."""
        self._memory = self._memory_of(self.holds.late(order, self.settled))
        self._execute(self._memory, order[~self.settled[order]] if self.settled.any() else order)
        seen = self.seen
        return ReplayOutcome(tuple(seen.checksums), seen.losses, seen.bad, seen.departure, order)

    def _execute(self, memory: _Memory, places: npt.NDArray[np.int64]) -> None:
        self.seen = ValuesShown(list(self.recorded))
        self.executed += 1
        effects = memory.effects
        memory.arena.reset()
        with self.as_live():
            for place in places.tolist():
                effects[place]()

    @contextmanager
    def as_live(self) -> Iterator[None]:
        """Restore the recorded state that kernels depend on (threads, gradient mode). Raises :class:`ReplayError`."""
        threads = torch.get_num_threads()
        other = self._threads not in (0, threads)  # setting the count creates a thread pool, which no fork survives
        if other:
            torch.set_num_threads(self._threads)  # sums are split among the threads
        # Some kernels compute differently if gradients are enabled, and the simulated GPU always enables them.
        try:
            with torch._C._AutoDispatchBelowADInplaceOrView(), torch.set_grad_enabled(bool(self._threads)):
                yield
        except (RuntimeError, IndexError, TypeError, ValueError) as error:
            raise ReplayError(f"the recorded work cannot be executed: {error}") from error
        finally:
            if other:
                torch.set_num_threads(threads)

    def verify(self) -> ReplayOutcome:
        """Execute as recorded. Raises :class:`ReplayError` unless every bit equals that of the live run."""
        outcome = self.run()
        wrong = [
            look for look, now, then in zip(self.looks, outcome.checksums, self.recorded, strict=True) if now != then
        ]
        if wrong:
            then, now = self.recording.info.get("kernels"), torch.backends.cpu.get_cpu_capability()
            why = f"; it was computed by kernels for {then}, here they are for {now}" if then and then != now else ""
            first = f"{wrong[0]} is the first of {len(wrong)}"
            raise ReplayError(f"the replay does not give the recorded bits: {first}{why}")
        if outcome.departure is not None:
            raise ReplayError(f"the replay does not give what the host read: {outcome.departure}")
        return outcome

    @property
    def hands(self) -> Hands:
        """Return the memory and the actions for carrying out single effects."""
        return Hands(self._as_recorded.arena, self._as_recorded.effects)

    def shows(self, place: int) -> tuple[int, bool] | None:
        """Return the index in :attr:`looks` that an effect shows, and whether a differing value is a departure."""
        effect = self.graph.effects[place]
        key = effect.rank, effect.item
        if effect.what == "probe":
            return self._places[(*key, "")], False
        look = self._places.get((*key, READ)) if effect.what in ("kernel", "read", "host") else None
        if look is None:
            return None
        return look, effect.what != "kernel" or self._calls[key].function == LOOK

    def exchange(self, rank: int, op: int) -> tuple[int, int, int]:
        """Return a collective's number, the index of ``rank`` among its members, and the number of members."""
        number, members = self._exchanges[rank, op]
        return number, members.index(rank), len(members)

    def tensor(self, rank: int, view: View) -> Tensor:
        """Return the content of a recorded tensor after the last execution."""
        return self._memory.arena.view(rank, view)

    def settle(self, effects: Collection[int]) -> None:
        """Execute ``effects`` (places) once, now, as recorded, and begin every replay after them.

        Allowed for effects that precede all remaining effects in every timing, or that race with nothing.
        """
        chosen = np.zeros(len(self.graph.effects), dtype=np.bool_)
        chosen[list(effects)] = True
        order = self.graph.order(self.graph.times())
        self._memory = self._as_recorded
        self._execute(self._memory, order[chosen[order]])
        self._touched = touched(
            self.recording, [effect for effect, done in zip(self.graph.effects, chosen, strict=True) if not done]
        )
        self._memory.arena.settle(self._touched)
        self.settled = chosen
        self._memories.clear()

    # -- memory ------------------------------------------------------------------------------------------

    def _memory_of(self, late: frozenset[tuple[int, Hold]]) -> _Memory:
        """Return the memory for this set of late holds, cached: timings have few such sets."""
        if not late:
            return self._as_recorded
        memory = self._memories.pop(late, None)
        if memory is None:
            while len(self._memories) >= _MEMORIES:
                del self._memories[next(iter(self._memories))]
            by_rank: dict[int, set[Hold]] = {}
            for rank, hold in late:
                by_rank.setdefault(rank, set()).add(hold)
            records = self.recording.records
            arena = Arena([records[rank] for rank in range(self.recording.world)], by_rank)
            memory = _Memory(arena, self._bind(arena))
            if self.settled.any():
                self._as_recorded.arena.reset()
                arena.take(self._as_recorded.arena)
                arena.settle(self._touched)
        self._memories[late] = memory
        return memory

    # -- binding ------------------------------------------------------------------------------------------

    def _read(self) -> None:
        """Collect the records that effects are bound from."""
        records = self.recording.records
        checksums: dict[int, int] = {}
        for rank in range(self.recording.world):
            phase = Phase(0, 0, "init")
            begun: dict[int, Collective] = {}
            last: dict[int, int] = {}  # by probe: index of the look; its Probed record follows
            for record in records[rank]:
                if isinstance(record, Call):
                    self._calls[rank, record.op] = record
                elif isinstance(record, Collective):
                    begun[record.op] = record
                elif isinstance(record, Transfer):
                    collective = begun[record.op]
                    self._parts.setdefault((collective.group, collective.number), {})[rank] = (collective, record)
                elif isinstance(record, Phase):
                    phase = record
                elif isinstance(record, Launch):
                    self._launches[rank, record.op] = record
                elif isinstance(record, Probe):
                    key = (rank, record.probe, READ if record.kind == READ else "")
                    self._places[key] = last[record.probe] = len(self.looks)
                    self._probes[key] = record
                    self.looks.append(UsedValue(rank, record.probe, *phase, record.kind, record.name))
                elif isinstance(record, Probed):
                    checksums[last[record.probe]] = record.checksum
                elif isinstance(record, Group):
                    self._members[record.group] = record.ranks
        for number, ((group, _), parts) in enumerate(self._parts.items()):
            for rank, (collective, _) in parts.items():
                self._exchanges[rank, collective.op] = number, self._members[group]
        self.recorded = self.expected = tuple(checksums[place] for place in range(len(self.looks)))

    def _bind(self, arena: Arena) -> list[work.Action]:
        """Return the action of each effect on this memory; settled effects do nothing."""
        records = self.recording.records
        exchanges: dict[tuple[int, int], tuple[DeviceExchange, int]] = {}
        for (group, _), parts in self._parts.items():
            exchange = self._exchange(arena, self._members[group], parts)
            for member, rank in enumerate(self._members[group]):
                exchanges[rank, parts[rank][0].op] = (exchange, member)
        finals = {rank: device_work.Finals(rank, records[rank], arena) for rank in records}

        def bound(effect: Effect) -> work.Action:
            key = (effect.rank, effect.item)
            if effect.what in ("kernel", "read", "host"):
                return self._on_device(effect.what, key, arena)
            if effect.what == "arrive":
                exchange, member = exchanges[key]
                return exchange.read(member)
            if effect.what == "leave":
                exchange, member = exchanges[key]
                return exchange.write(member)
            if effect.what == "probe":
                place, probe = self._places[(*key, "")], self._probes[(*key, "")]
                if probe.kind == "final" and probe.view[1] == "uint8":
                    return self._final(place, finals[effect.rank].probed(probe))
                return self._probe(place, probe, arena)
            if effect.what in ("inherit", "inherited"):
                return arena.inherit(*key) or _nothing
            return _nothing

        effects = zip(self.graph.effects, self.settled, strict=True)
        return [_nothing if done else bound(effect) for effect, done in effects]

    def _on_device(self, kind: str, key: tuple[int, int], arena: Arena) -> work.Action:
        """Return the action of an effect of the simulated GPU."""
        place = self._places.get((*key, READ))
        see = self._seeing(place, *key)
        if kind == "host":
            return device_work.host_access(self._launches[key], self._calls.get(key), key[0], arena, see)
        call = self._calls[key]
        if kind == "kernel":
            delivered = self._keeping(place) if place is not None and call.function != LOOK else see
            return device_work.device_kernel(call, key[0], arena, delivered)
        return device_work.device_read(call, key[0], arena, see or _nobody)

    def _exchange(
        self, arena: Arena, members: tuple[int, ...], parts: dict[int, tuple[Collective, Transfer]]
    ) -> DeviceExchange:
        records = [parts[rank] for rank in members]
        first, _ = records[0]
        kernel = wording.operator(first.kernel)
        if kernel in ("send", "recv"):
            kernel = "send_recv"
        root = members.index(first.root) if first.root >= 0 else -1

        def tensors(place: int, views: Sequence[View]) -> list[Tensor]:
            return [arena.view(members[place], view) for view in views]

        return DeviceExchange(kernel, [record for _, record in records], tensors, root)

    def _keeping(self, place: int) -> device_work.See:
        def keep(now: int) -> None:
            self.seen.checksums[place] = now

        return keep

    def _seeing(self, place: int | None, rank: int, op: int) -> device_work.See | None:
        """Return the callback for a value that the host reads: a differing value is a departure."""
        if place is None:
            return None

        def see(now: int) -> None:
            self.seen.checksums[place] = now
            if now != self.recorded[place] and self.seen.departure is None:
                self.seen.departure = Departure(self.recording.names.name(rank, op), self.recorded[place], now)

        return see

    def _final(self, place: int, checksum: Callable[[], int]) -> work.Action:
        def see() -> None:
            self.seen.checksums[place] = checksum()

        return see

    def _probe(self, place: int, probe: Probe, arena: Arena) -> work.Action:
        value = work.ReplayedValue(probe.view, self.looks[place].rank, arena)
        if probe.kind == "loss":

            def see_loss() -> None:
                self.seen.checksums[place] = value.checksum()
                self.seen.losses[place] = float(value.tensor)

            return see_loss

        def see() -> None:
            now = value.checksum()
            self.seen.checksums[place] = now
            if now != self.expected[place]:
                self.seen.bad[place] = value.bad()

        return see


def _nothing() -> None:
    """Do nothing: the effect only marks a moment."""


def _nobody(checksum: int) -> None:
    """Ignore the checksum of a read that no probe recorded."""
