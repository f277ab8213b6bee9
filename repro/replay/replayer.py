"""Executes a recording again, in one process, under any timing that keeps its ordering edges.

Every effect of every rank takes place on real memory, in the order of virtual time. The host's program
does not run: what it issued is recorded. So a replay is exact up to the first value that the *host* read
and that is another one than when it was recorded (:class:`Departure`): there the program might have gone
another way, and what follows is what the recorded work would have computed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from repro.replay import device_work, work
from repro.replay.device_timing import Deviation
from repro.replay.exchange import Exchange
from repro.replay.faults import ReplayError
from repro.replay.graph import Graph
from repro.replay.host import Effect, on_device
from repro.replay.memory import Arena
from repro.replay.names import OperationName
from repro.replay.recording import AnyTiming, Recording
from repro.replay.touched import touched
from repro.replay.transfers import DeviceExchange
from repro.trace import LOOK, Call, Collective, Group, Launch, Phase, Seen, Sight, Transfer, View

READ = "read"
AnyExchange = Exchange | DeviceExchange


class Departure(NamedTuple):
    """The host read another value than it did when the run was recorded."""

    operation: OperationName
    recorded: Any
    value: Any


class Look(NamedTuple):
    """A value that training uses: where in the program, and what it is called (a loss has no name)."""

    rank: int
    sight: int
    step: int
    micro_batch: int
    phase: str
    kind: str
    name: str


@dataclass(frozen=True)
class Outcome:
    """What came out of one replay.

    ``checksums``: of each of :attr:`Replayer.looks`, CRC-32. ``losses``: values by place in ``looks``.
    ``bad``: how many values are not finite, by place, where the checksum is not the expected one.
    ``order``: the places of all effects (:attr:`Graph.effects`) in the order in which they took place.
    """

    checksums: tuple[int, ...]
    losses: dict[int, float]
    bad: dict[int, int]
    departure: Departure | None
    order: npt.NDArray[np.int64]


class Replayer:
    """A recording made ready to be executed many times.

    ``looks`` are the values that training uses, by rank in the order of the program; ``recorded`` their checksums
    in the live run, ``expected`` (may be set) those in the run that others are compared with.

    Raises :class:`ReplayError` for a recording that is damaged.
    """

    def __init__(self, recording: Recording) -> None:
        self.recording = recording
        self.graph = Graph(recording)
        ranks = range(recording.world)
        self._arena = Arena([recording.records[rank] for rank in ranks])
        self.looks: list[Look] = []
        self.recorded: tuple[int, ...] = ()
        self.expected: tuple[int, ...] = ()
        self._settled = np.zeros(len(self.graph.effects), dtype=np.bool_)  # by place: executed before all replays
        self._checksums: list[int] = []
        self._losses: dict[int, float] = {}
        self._bad: dict[int, int] = {}
        self._departure: Departure | None = None
        self._calls: dict[tuple[int, int], Call] = {}
        self._threads = int(recording.info.get("threads", 0)) if on_device(recording.records[0]) else 0
        try:
            self._effects = self._bind()
        except (TypeError, ValueError, LookupError, AttributeError, RuntimeError, NotImplementedError) as error:
            raise ReplayError(f"the recording cannot be replayed: {error}") from error

    # -- running ----------------------------------------------------------------------------------------

    def run(self, deviations: Sequence[Deviation] = ()) -> Outcome:
        """Execute under the recorded timing, changed by ``deviations``.

        Raises :class:`repro.replay.names.UnknownOperation` for one that names what is not there.
        """
        return self.run_timing(self.recording.deviated(deviations) if deviations else None)

    def run_timing(self, timing: AnyTiming | None) -> Outcome:
        """Execute under ``timing``; None: as recorded."""
        return self.run_order(self.graph.order(self.graph.times(timing)))

    def run_order(self, order: npt.NDArray[np.int64]) -> Outcome:
        """Execute the effects in this order, which must keep the recorded edges."""
        self._checksums = list(self.recorded)
        self._losses, self._bad, self._departure = {}, {}, None
        effects = self._effects
        places = order[~self._settled[order]].tolist() if self._settled.any() else order.tolist()
        self._arena.reset()
        with self._as_live():
            try:
                for place in places:
                    effects[place]()
            except (RuntimeError, IndexError, TypeError, ValueError) as error:
                raise ReplayError(f"the recorded work cannot be executed: {error}") from error
        return Outcome(tuple(self._checksums), self._losses, self._bad, self._departure, order)

    @contextmanager
    def _as_live(self) -> Iterator[None]:
        """What a kernel asks beside its arguments."""
        threads = torch.get_num_threads()
        other = self._threads not in (0, threads)  # to set them makes a pool of threads, which no fork survives
        if other:
            torch.set_num_threads(self._threads)  # sums are split among them
        # Where gradients are wanted some kernels compute in another way: the simulated GPU always lets them.
        try:
            with torch._C._AutoDispatchBelowADInplaceOrView(), torch.set_grad_enabled(bool(self._threads)):
                yield
        finally:
            if other:
                torch.set_num_threads(threads)

    def verify(self) -> Outcome:
        """Execute as recorded. Raises :class:`ReplayError` unless every bit is that of the live run."""
        outcome = self.run_order(self.graph.order(self.graph.times()))
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

    def tensor(self, rank: int, view: View) -> Tensor:
        """What a recorded tensor holds now: after the last execution."""
        return self._arena.view(rank, view)

    def settle(self, effects: Collection[int]) -> None:
        """Execute ``effects`` (places) once, now, as recorded, and begin every replay behind them.

        Allowed for what comes before all that is left in every timing, or races with nothing.
        """
        chosen = np.zeros(len(self._effects), dtype=np.bool_)
        chosen[list(effects)] = True
        self._settled = ~chosen
        self.run_order(self.graph.order(self.graph.times()))
        left = [effect for effect, done in zip(self.graph.effects, chosen, strict=True) if not done]
        self._arena.settle(touched(self.recording, left))
        self._settled = chosen

    # -- binding ------------------------------------------------------------------------------------------

    def _bind(self) -> list[work.Effect]:
        records = self.recording.records
        device = on_device(records[0])
        calls = self._calls
        exchanges: dict[tuple[int, int], tuple[AnyExchange, int]] = {}
        looks: dict[tuple[int, int, str], int] = {}
        sights: dict[tuple[int, int, str], Sight] = {}
        seen: dict[int, int] = {}
        launches: dict[tuple[int, int], Launch] = {}
        parts: dict[tuple[int, int], dict[int, tuple[Collective, Transfer]]] = {}
        members: dict[int, tuple[int, ...]] = {}
        for rank in range(self.recording.world):
            phase = Phase(0, 0, "init")
            begun: dict[int, Collective] = {}
            last: dict[int, int] = {}  # by sight: its place among the looks; the device tells Seen behind each
            for record in records[rank]:
                if isinstance(record, Call):
                    calls[rank, record.op] = record
                elif isinstance(record, Collective):
                    begun[record.op] = record
                elif isinstance(record, Transfer):
                    one = begun[record.op]
                    parts.setdefault((one.group, one.number), {})[rank] = (one, record)
                elif isinstance(record, Phase):
                    phase = record
                elif isinstance(record, Launch):
                    launches[rank, record.op] = record
                elif isinstance(record, Sight):
                    kind = READ if record.kind == READ else ""
                    looks[rank, record.sight, kind] = last[record.sight] = len(self.looks)
                    sights[rank, record.sight, kind] = record
                    self.looks.append(Look(rank, record.sight, *phase, record.kind, record.name))
                elif isinstance(record, Seen):
                    seen[last[record.sight]] = record.checksum
                elif isinstance(record, Group):
                    members[record.group] = record.ranks
        self.recorded = self.expected = tuple(seen[place] for place in range(len(self.looks)))
        for (group, _), those in parts.items():
            exchange = self._exchange(members[group], those)
            for member, rank in enumerate(members[group]):
                exchanges[rank, those[rank][0].op] = (exchange, member)

        finals = {rank: device_work.Finals(rank, records[rank], self._arena) for rank in records if device}

        def bound(effect: Effect) -> work.Effect:
            key = (effect.rank, effect.item)
            if device and effect.what in ("kernel", "read", "host"):
                see = self._seeing(looks.get((*key, READ)), *key)
                if effect.what == "host":
                    return device_work.host_access(launches[key], calls.get(key), effect.rank, self._arena, see)
                if effect.what == "kernel":
                    told = looks.get((*key, READ))
                    delivered = self._telling(told) if told is not None and calls[key].function != LOOK else see
                    return device_work.device_kernel(calls[key], effect.rank, self._arena, delivered)
                return device_work.device_read(calls[key], effect.rank, self._arena, see or _nobody)
            if effect.what == "kernel":
                return work.kernel(calls[key], effect.rank, self._arena)
            if effect.what == "read":
                return self._host_read(calls[key], effect.rank)
            if effect.what == "arrive":
                exchange, member = exchanges[key]
                return exchange.read(member)
            if effect.what == "leave":
                exchange, member = exchanges[key]
                return exchange.write(member)
            if effect.what == "sight":
                place, sight = looks[(*key, "")], sights[(*key, "")]
                if device and sight.kind == "final" and sight.view[1] == "uint8":
                    return self._final(place, finals[effect.rank].glimpse(sight))
                return self._sight(place, sight)
            if effect.what in ("inherit", "inherited"):
                return self._arena.inherit(*key)
            return self._arena.poison(*key)

        return [bound(effect) for effect in self.graph.effects]

    def _exchange(self, members: tuple[int, ...], parts: dict[int, tuple[Collective, Transfer]]) -> AnyExchange:
        records = [parts[rank] for rank in members]
        first, transfer = records[0]
        kernel = first.kernel.rpartition("::")[2]
        if kernel in ("send", "recv"):
            kernel = "send_recv"
        root = members.index(first.root) if first.root >= 0 else -1
        if on_device(self.recording.records[members[0]]):

            def tensors(place: int, views: Sequence[View]) -> list[Tensor]:
                return [self._arena.view(members[place], view) for view in views]

            return DeviceExchange(kernel, [one for _, one in records], tensors, root)
        splits = None
        if any(one.splits is not None for _, one in records):
            splits = [one.splits or ((), ()) for _, one in records]
        return Exchange(
            kernel,
            [[self._arena.view(rank, view) for view in parts[rank][1].inputs] for rank in members],
            [[self._arena.view(rank, view) for view in parts[rank][1].outputs] for rank in members],
            reduction=transfer.reduction,
            root=root,
            splits=splits,
        )

    def _host_read(self, call: Call, rank: int) -> work.Effect:
        def differs(value: Any) -> None:
            if self._departure is None:
                self._departure = Departure(self.recording.names.name(rank, call.op), call.result, value)

        return work.host_read(call, rank, self._arena, differs)

    def _telling(self, place: int) -> device_work.See:
        def tell(now: int) -> None:
            self._checksums[place] = now

        return tell

    def _seeing(self, place: int | None, rank: int, op: int) -> device_work.See | None:
        """What the host learns; another value than then is a departure."""
        if place is None:
            return None

        def see(now: int) -> None:
            self._checksums[place] = now
            if now != self.recorded[place] and self._departure is None:
                self._departure = Departure(self.recording.names.name(rank, op), self.recorded[place], now)

        return see

    def _final(self, place: int, glimpse: Callable[[], int]) -> work.Effect:
        def see() -> None:
            self._checksums[place] = glimpse()

        return see

    def _sight(self, place: int, sight: Sight) -> work.Effect:
        glimpse = work.Glimpse(sight.view, self.looks[place].rank, self._arena)
        if sight.kind == "loss":

            def see_loss() -> None:
                self._checksums[place] = glimpse.checksum()
                self._losses[place] = float(glimpse.tensor)

            return see_loss

        def see() -> None:
            now = glimpse.checksum()
            self._checksums[place] = now
            if now != self.expected[place]:
                self._bad[place] = glimpse.bad()

        return see


def _nobody(checksum: int) -> None:
    """Nobody looks."""
