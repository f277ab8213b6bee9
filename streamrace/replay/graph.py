"""Computes when recorded work starts and ends in a timing: longest paths in the graph of dependencies.

The live timeline (``streamrace/device/csrc/timeline.cpp``) computes times while the host runs. In a recording the
host's actions are fixed, so every time is ``max(times of the predecessors) + cost``, and only the costs change with the
timing. The graph is built and sorted once; a timing is one pass over it.

Its edges are what the recording says must hold in every timing: the order of the host, the order of each stream, waits,
host waits (a ``query()`` that answered True is one), and that a collective starts when its last member has arrived. A
query that answered False adds no edge: it only took the host's time.
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
    """The dependency graph of a recording.

    ``effects``: all effects, by rank in the order of issue; other modules name an effect by its *place* (index) in this
    list. Nodes are numbered so that each comes after its predecessors. ``preds``: by node, its direct predecessors;
    ``threads``: by node, its rank and stream (or :data:`streamrace.replay.host.HOST`); ``launches``, ``begins``,
    ``ends`` and ``issued``: by rank and op, the host's node at the launch, the operation's first node, its last node,
    and its index among the records; ``begun``: by step and rank, the index among the records and the host's node when
    the step begins. ``asks``: of each query that answered False, the host's node and the node of the queried moment.

    Raises :class:`ReplayError` if the recording is inconsistent, or its times do not follow from it.
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
        """Return the time of each node in nanoseconds. ``timing``: None for the recorded times."""
        return self._recorded_times if timing is None else self._moments(timing).tolist()

    def order(self, times: Sequence[int] | EffectOrder) -> EffectOrder:
        """Return the effects (places) in the order of time; ties in the order of issue, as in a live run."""
        when = np.asarray(times, dtype=np.int64)[self._effect_nodes]
        return np.argsort(when, kind="stable")

    def timed(self, timing: DeviceTiming | None = None) -> EffectOrder:
        """Return the effects (places) in the order of time in ``timing``; None: as recorded."""
        when = self._recorded if timing is None else self._moments(timing)
        return ordered(when[self._effect_nodes], self._nearly)

    def _moments(self, timing: DeviceTiming) -> npt.NDArray[np.int64]:
        costs = self._cost_model.of(timing)
        first = self._cost_model.delay(costs, timing)
        same = replace(timing, delays={}) == self._undelayed
        return self._waiting.times(costs, first if same else 0, self._undelayed_times)

    def _check(self, expected: Iterable[tuple[int, int]]) -> None:
        """Raise :class:`ReplayError` unless the recorded times follow from the graph."""
        for node, time in expected:
            if self._recorded_times[node] != time:
                raise ReplayError(
                    f"the recorded times do not follow from what was recorded ({self._recorded_times[node]} ns, not "
                    f"{time}): the recording is damaged, or of another release of this project"
                )

    def _sorted(self, nodes: HostNodes) -> list[int]:
        """Renumber the nodes in the order of the recorded times; return the new numbers by the old.

        Nodes before a change keep their times, and are then not computed again.
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
        steps = [action._replace(node=new[action.node]) for action in nodes.steps]
        costed = [record._replace(node=new[record.node], late=new[record.late]) for record in nodes.costed]
        self._cost_model = CostModel(len(order), costed, steps)
        return new

    # -- effects ----------------------------------------------------------------------------------------

    def place(self, rank: int, kind: str, item: int) -> int:
        """Return the place of an effect in :attr:`effects`. Raises KeyError."""
        return self._places[rank, kind, item]

    def of_launch(self, rank: int, op: int) -> int | None:
        """Return the place of a launch's effect in :attr:`effects`; None if the launch has no effect of its own."""
        places = (self._places.get((rank, kind, op)) for kind in ("kernel", "read", "host"))
        return next((place for place in places if place is not None), None)

    def issue_order(self) -> EffectOrder:
        """Return the order in which every rank does each piece of work when it is issued, as a plain CPU does."""
        ranks = range(self._recording.world)
        queues = [[place for place, effect in enumerate(self.effects) if effect.rank == rank] for rank in ranks]
        at = [0] * len(queues)
        missing = {start: len(self.preds[start]) for start in self._collectives}
        waiting: dict[int, list[int]] = {}  # by a collective's first node: the ranks that have reached its end
        postponed: dict[int, list[int]] = {}  # ... and ends that no rank waited for
        order: list[int] = []
        running = list(ranks)
        while running or waiting:
            if not running:  # the ranks issue collectives in different orders: ranks continue without the end of one
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
        """Return ``nodes`` and all nodes that come before them in every timing."""
        before = set(nodes)
        todo = list(before)
        while todo:
            for pred in self.preds[todo.pop()]:
                if pred not in before:
                    before.add(pred)
                    todo.append(pred)
        return before
