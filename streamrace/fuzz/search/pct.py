"""Searches by probabilistic concurrency testing.

Burckhardt, Kothari, Musuvathi and Nagarakatte, "A Randomized Scheduler with Probabilistic Guarantees of Finding Bugs",
ASPLOS 2010. Threads get random distinct priorities, and at each step the enabled thread of highest priority runs; at
``depth - 1`` random steps the current thread gets a priority below all others. A bug of depth *d* is one that shows
whenever *d* pairs of steps come in a certain order. One schedule shows it with a probability of at least::

    1 / (n * k ** (d - 1))

Here the *n* threads are the hosts and the streams of all ranks; the *k* steps are launches (of a host), kernels, and
each rank's arrival at a collective and its end, except for settled ones
(:attr:`streamrace.fuzz.subject.Subject.first_step`). All other effects take no time of their own, and happen with the
step that they wait for, as in every timing: reads of the host, memory that comes back or is handed out, probes, and the
start of a collective with the last arrival.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from random import Random
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt

from streamrace.fuzz.search import Execution
from streamrace.fuzz.subject import Subject
from streamrace.replay.graph import EffectOrder, Graph

Thread = tuple[int, int]
"""A rank and its stream, or :data:`streamrace.replay.host.HOST`."""

_Clock = npt.NDArray[np.int64]
"""By thread, the number of its steps that are done."""


@dataclass(frozen=True)
class Pct:
    """An endless search. Finds bugs of ``depth`` and below with the probability that the paper proves."""

    depth: int = 2

    @property
    def name(self) -> str:
        return f"pct-{self.depth}"

    def timings(self, subject: Subject, seed: int) -> Iterator[Execution]:
        random = Random(seed)
        steps = steps_of(subject)
        while True:
            order = self.draw(steps, random)
            yield Execution(subject.judged(subject.sharing.run_order(order)), order=order)

    def draw(self, steps: ScheduleSteps, random: Random) -> EffectOrder:
        """Draw one schedule."""
        threads = len(steps.threads)
        priorities = random.sample(range(self.depth, self.depth + threads), threads)
        return steps.order(priorities, [random.randrange(steps.count) for _ in range(self.depth - 1)])


class ScheduleSteps:
    """The steps that a schedule of a recording orders: those of each thread, and their dependencies.

    ``threads``: the threads that have steps (the paper's *n* is their number). ``count``: the number of steps (the
    paper's *k*). ``settled``: by place, whether the effect comes before all steps.
    """

    def __init__(self, graph: Graph, first_step: int = 0) -> None:
        done = graph.ancestors(host for _, host in graph.begun.get(first_step, {}).values()) if first_step else set()
        of_thread: dict[Thread, list[int]] = {}
        for node in sorted(_steps(graph) - done):
            of_thread.setdefault(graph.threads[node], []).append(node)
        self.threads: tuple[Thread, ...] = tuple(sorted(of_thread))
        self._ends: list[int] = []  # steps are numbered thread by thread: the end of each thread's range
        self._thread: list[int] = []  # by step
        self._step: dict[int, int] = {}  # by node
        for number, thread in enumerate(self.threads):
            for node in of_thread[thread]:
                self._step[node] = len(self._step)
                self._thread.append(number)
            self._ends.append(len(self._step))
        self.count = len(self._step)
        self._starts = [0, *self._ends[:-1]]
        self._clocks = np.zeros((self.count + 1, len(self.threads)), dtype=np.int64)  # by step, itself included
        self._missing = [0] * self.count  # how many steps of other threads each waits for
        self._wakes: list[list[int]] = [[] for _ in range(self.count)]  # steps of other threads that wait for it
        self._last = self._follow(graph)
        self.settled = self._last.max(axis=1) < 0
        nodes = np.array([effect.node for effect in graph.effects], dtype=np.int64)
        self._before = (nodes - len(graph.preds))[self.settled]  # settled effects come first, as recorded

    def order(self, priorities: Sequence[int], changes: Sequence[int]) -> EffectOrder:
        """Return the effects (places) as scheduled: at each step the enabled thread of highest priority runs.

        ``priorities``: by thread. Before step ``changes[i]`` the current thread falls to priority i + 1.
        """
        now, at, missing = list(priorities), list(self._starts), list(self._missing)
        ends, wakes, thread_of = self._ends, self._wakes, self._thread
        falls: dict[int, int] = {}
        for priority, step in enumerate(changes, 1):
            falls[step] = min(priority, falls.get(step, priority))
        next_fall = min(falls, default=-1)
        done: list[int] = []
        ready = [(-now[thread], thread) for thread, step in enumerate(at) if not missing[step]]
        heapify(ready)
        while ready:
            _, thread = heappop(ready)
            step, end, own = at[thread], ends[thread], now[thread]
            displaced = False
            while step < end and not missing[step] and not displaced:
                if len(done) == next_fall:
                    own = now[thread] = falls.pop(next_fall)
                    next_fall = min(falls, default=-1)
                    break
                done.append(step)
                for waiting in wakes[step]:
                    missing[waiting] -= 1
                    other = thread_of[waiting]
                    if not missing[waiting] and at[other] == waiting:
                        heappush(ready, (-now[other], other))
                        displaced = displaced or now[other] > own
                step += 1
            at[thread] = step
            if step < end and not missing[step]:
                heappush(ready, (-own, thread))
        when = np.full(self.count + 1, -1, dtype=np.int64)
        when[done] = np.arange(self.count)
        effects = when[self._last].max(axis=1)
        effects[self.settled] = self._before
        return np.argsort(effects, kind="stable")

    def _follow(self, graph: Graph) -> npt.NDArray[np.int64]:
        """Find the dependencies; return for each effect the steps whose last one triggers it (-1: none, settled).

        Of the steps that precede a node, those that precede another of these steps are left out.
        """
        clocks: list[_Clock] = []
        nothing = np.zeros(len(self.threads), dtype=np.int64)
        for node, preds in enumerate(graph.preds):
            before = nothing if not preds else clocks[preds[0]]
            for pred in preds[1:]:
                before = np.maximum(before, clocks[pred])
            step = self._step.get(node)
            if step is not None:
                thread = self._thread[step]
                for earlier in self._latest(before):
                    if self._thread[earlier] != thread:
                        self._wakes[earlier].append(step)
                        self._missing[step] += 1
                before = before.copy()
                before[thread] = step - self._starts[thread] + 1
                self._clocks[step] = before
            clocks.append(before)
        latest = [
            [self._step[effect.node]] if effect.node in self._step else self._latest(clocks[effect.node])
            for effect in graph.effects
        ]
        width = max(map(len, latest), default=0) or 1
        return np.array([steps + [-1] * (width - len(steps)) for steps in latest], dtype=np.int64).reshape(-1, width)

    def _latest(self, clock: _Clock) -> list[int]:
        """Return the last steps that a clock includes, without those that precede another of them."""
        threads = np.flatnonzero(clock)
        if not len(threads):
            return []
        steps = np.asarray(self._starts)[threads] + clock[threads] - 1
        preceding = self._clocks[np.ix_(steps, threads)]  # by step: the steps of each thread that precede it
        np.fill_diagonal(preceding, 0)
        latest: list[int] = steps[preceding.max(axis=0) < clock[threads]].tolist()
        return latest


def _steps(graph: Graph) -> set[int]:
    """Return the nodes that take time: each operation's launch and end, and a collective's arrival."""
    collectives = {(effect.rank, effect.item) for effect in graph.effects if effect.what == "arrive"}
    nodes = set(graph.ends.values())
    for key, begin in graph.begins.items():
        if key in collectives:
            begin = next(pred for pred in graph.preds[begin] if graph.threads[pred][0] == key[0])
            nodes.add(begin)
        nodes.add(graph.launches[key])
    return nodes


_STEPS: WeakKeyDictionary[Subject, ScheduleSteps] = WeakKeyDictionary()


def steps_of(subject: Subject) -> ScheduleSteps:
    """Return the steps of a subject, computed once."""
    if subject not in _STEPS:
        _STEPS[subject] = ScheduleSteps(subject.replayer.graph, subject.first_step)
    return _STEPS[subject]
