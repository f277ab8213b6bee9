"""When recorded work starts and ends in a timing: longest paths in the graph of what waits for what.

The live timeline (``streamrace/device/csrc/timeline.cpp``) finds times while the host runs. What the host did
is fixed in a recording, so here every time is ``max(times it comes after) + cost``, and only the costs
change with the timing. The graph is built and sorted once; a timing is one pass over it.

Its edges are what the recording says must hold in every timing: the host's order, each stream's, waits,
host waits (a ``query()`` that answered True is one), and that a collective starts when its last member has
arrived. A query that answered False is no edge: it only took the host's time.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from streamrace.replay.cost_model import CostModel
from streamrace.replay.device_timing import DeviceTiming
from streamrace.replay.faults import ReplayError
from streamrace.replay.host import Effect, HostNodes, nodes_of
from streamrace.replay.recording import Recording
from streamrace.replay.simplify import simplify
from streamrace.replay.waiting import Waiting, ordered

Times = list[int]
EffectOrder = npt.NDArray[np.int64]


class Graph:
    """What waits for what in a recording.

    ``effects`` are all effects, by rank in the order of issue; elsewhere they are named by their *place* in it.
    Nodes are numbered so that each comes after all that it waits for. ``preds``: by node, what it waits for at
    once; ``threads``: the rank and the stream (or :data:`streamrace.replay.host.HOST`) that it is a moment of;
    ``launches``, ``begins``, ``ends`` and ``issued``: by rank and op, the host's node when it is launched, its first
    and last node, and its place among the records;
    ``begun``: by step and rank, the place among the records and the host's node when the step begins.
    ``asks``: of each query that answered False the host's node, and that of the moment which it asked about.

    Raises :class:`ReplayError` where the recording makes no sense, or its times do not follow from it.
    """

    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        self._timing = recording.timing
        nodes = nodes_of(dict(recording.records), mirrored=bool(recording.info.get("mirrored")))
        self.preds: list[tuple[int, ...]] = []
        self.threads: list[tuple[int, int]] = []
        new = self._sorted(nodes)
        self._waiting = Waiting(self.preds)
        self.effects: list[Effect] = sorted(
            (effect._replace(node=new[effect.node]) for effect in nodes.effects),
            key=lambda effect: (effect.rank, effect.seq),
        )
        self.launches = {key: new[node] for key, node in nodes.launches.items()}
        self.ends = {key: new[node] for key, node in nodes.ends.items()}
        self.begins = {key: new[node] for key, node in nodes.begins.items()}
        self.issued = nodes.issued
        self.begun = {
            step: {rank: (seq, new[host]) for rank, (seq, host) in ranks.items()} for step, ranks in nodes.begun.items()
        }
        self.asks = [(new[ask], new[moment]) for ask, moment in nodes.asks]
        self._collectives = [new[node] for node in nodes.starts.values()]
        self._places = {(effect.rank, effect.what, effect.item): at for at, effect in enumerate(self.effects)}
        self._effect_nodes = np.array([effect.node for effect in self.effects], dtype=np.int64)
        self._undelayed: DeviceTiming = replace(self._timing, delays={})
        nothing = np.empty(len(self.preds), dtype=np.int64)
        self._undelayed_times = self._waiting.times(self._cost_model.of(self._undelayed), 0, nothing)
        self._recorded = self._moments(self._timing)
        self._recorded_times: Times = self._recorded.tolist()
        self._nearly = self.order(self._recorded)
        self._check([(new[node], time) for node, time in nodes.expected])

    # -- times ----------------------------------------------------------------------------------------

    def times(self, timing: DeviceTiming | None = None) -> Times:
        """The time of each node, nanoseconds. None: as recorded."""
        return self._recorded_times if timing is None else self._moments(timing).tolist()

    def order(self, times: Sequence[int] | EffectOrder) -> EffectOrder:
        """The effects (places) in the order of time; ties in the order of issue, as live."""
        when = np.asarray(times, dtype=np.int64)[self._effect_nodes]
        return np.argsort(when, kind="stable")

    def timed(self, timing: DeviceTiming | None = None) -> EffectOrder:
        """The same, of a timing."""
        when = self._recorded if timing is None else self._moments(timing)
        return ordered(when[self._effect_nodes], self._nearly)

    def _moments(self, timing: DeviceTiming) -> npt.NDArray[np.int64]:
        costs = self._cost_model.of(timing)
        first = self._cost_model.delay(costs, timing)
        same = replace(timing, delays={}) == self._undelayed
        return self._waiting.times(costs, first if same else 0, self._undelayed_times)

    def _check(self, expected: Iterable[tuple[int, int]]) -> None:
        """Raises :class:`ReplayError` unless the recorded times follow from the graph."""
        for node, time in expected:
            if self._recorded_times[node] != time:
                raise ReplayError(
                    f"the recorded times do not follow from what was recorded ({self._recorded_times[node]} ns, not "
                    f"{time}): the recording is damaged, or of another release of this project"
                )

    def _sorted(self, nodes: HostNodes) -> list[int]:
        """Number the nodes anew, in the order of the recorded times; gives the new numbers by the old.

        What comes before a change keeps its time, and is then not computed again.
        """
        count = len(nodes.preds)
        left_out = simplify(nodes)
        waiting = [len(preds) for preds in nodes.preds]
        after: list[list[int]] = [[] for _ in range(count)]
        for node, preds in enumerate(nodes.preds):
            for pred in preds:
                after[pred].append(node)
        order = [node for node in range(count) if not waiting[node]]
        for node in order:  # grows
            for later in after[node]:
                waiting[later] -= 1
                if not waiting[later]:
                    order.append(later)
        if len(order) != count:
            raise ReplayError("the ranks wait for each other in a circle: the recording is damaged")
        cost_model = CostModel(count, nodes.costed, nodes.steps)
        costs = cost_model.of(self._timing)
        cost_model.delay(costs, self._timing)
        times = [0] * count
        for node in order:
            times[node] = max([times[pred] for pred in nodes.preds[node]], default=0) + costs[node]
        order.sort(key=times.__getitem__)  # stable, and no cost is below zero
        order = [node for node in order if node not in left_out]
        new = [-1] * count
        for number, node in enumerate(order):
            new[node] = number
        self.preds = [tuple(new[pred] for pred in nodes.preds[node]) for node in order]
        self.threads = [nodes.threads[node] for node in order]
        steps = [(new[node], rank, what) for node, rank, what in nodes.steps]
        costed = [one._replace(node=new[one.node], late=new[one.late]) for one in nodes.costed]
        self._cost_model = CostModel(len(order), costed, steps)
        return new

    # -- effects ----------------------------------------------------------------------------------------

    def place(self, rank: int, what: str, item: int) -> int:
        """Where in :attr:`effects` an effect is. Raises KeyError."""
        return self._places[rank, what, item]

    def of_launch(self, rank: int, op: int) -> int | None:
        """Where in :attr:`effects` a launch's is; None where it has none: what it does was done when it was issued."""
        found = (self._places.get((rank, what, op)) for what in ("kernel", "read", "host"))
        return next((place for place in found if place is not None), None)

    def issue_order(self) -> EffectOrder:
        """The order in which every rank does each piece of work at once when it is issued, as a plain CPU does."""
        ranks = range(self._recording.world)
        queues = [[place for place, effect in enumerate(self.effects) if effect.rank == rank] for rank in ranks]
        at = [0] * len(queues)
        missing = {start: len(self.preds[start]) for start in self._collectives}
        waiting: dict[int, list[int]] = {}  # by the node at which a collective starts: ranks that stand before its end
        postponed: dict[int, list[int]] = {}  # ... and ends that no rank waited for
        order: list[int] = []
        running = list(ranks)
        while running or waiting:
            if not running:  # they issue collectives in different orders: one rank goes on without the end of one
                start = next(iter(waiting))
                for rank in waiting.pop(start):
                    postponed.setdefault(start, []).append(queues[rank][at[rank]])
                    at[rank] += 1
                    running.append(rank)
            rank = running.pop()
            while at[rank] < len(queues[rank]):
                place = queues[rank][at[rank]]
                effect = self.effects[place]
                if effect.what == "leave":
                    start = self.begins[rank, effect.item]
                    if missing[start]:
                        waiting.setdefault(start, []).append(rank)
                        break
                at[rank] += 1
                order.append(place)
                if effect.what == "arrive":
                    missing[effect.node] -= 1
                    if not missing[effect.node]:
                        order += postponed.pop(effect.node, ())
                        running += waiting.pop(effect.node, ())
        return np.array(order, dtype=np.int64)

    def ancestors(self, nodes: Iterable[int]) -> set[int]:
        """The nodes, and all that come before them in every timing."""
        before = set(nodes)
        todo = list(before)
        while todo:
            for pred in self.preds[todo.pop()]:
                if pred not in before:
                    before.add(pred)
                    todo.append(pred)
        return before
