"""What the moments of a recording cost in a timing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from repro.accelerator.costs import Clock, Timing
from repro.accelerator.device import ASKING_NS
from repro.replay.device_timing import DevicePrices, DeviceTiming
from repro.replay.host import Priced

_NO_RANK = -1


class Costing(Protocol):
    """What nodes cost in a timing of the recording's own kind."""

    def of(self, timing: Any) -> list[int]:
        """By node; the timing's delays are left out."""
        ...

    def delay(self, costs: list[int], timing: Any) -> int:
        """Add the timing's delays; gives the first node whose cost changes."""
        ...


def prices_of(
    base: Timing | DeviceTiming, world: int, count: int, priced: Sequence[Priced], steps: Iterable[tuple[int, int, str]]
) -> Costing:
    """Those of a recording with this timing."""
    if isinstance(base, DeviceTiming):
        return DevicePrices(count, priced, steps)
    return Prices(base, world, count, priced, steps)


class Prices:
    """The costs of ``count`` nodes. Most timings differ little from ``base``: what is the same is kept."""

    def __init__(
        self, base: Timing, world: int, count: int, priced: Sequence[Priced], steps: Iterable[tuple[int, int, str]]
    ) -> None:
        self._world = world
        self._priced = priced
        self._by_op = {(one.rank, one.op): one for one in priced}
        # By what stretches them, kernels with what they take by themselves.
        self._kernels: dict[tuple[str, str], dict[int, tuple[list[int], npt.NDArray[np.float64]]]] = {}
        self._collectives: dict[tuple[str, str], list[Priced]] = {}
        alike: dict[tuple[str, str], dict[int, list[Priced]]] = {}
        for one in priced:
            if one.members:
                self._collectives.setdefault((one.kernel, one.stream), []).append(one)
            else:
                alike.setdefault((one.kernel, one.stream), {}).setdefault(one.rank, []).append(one)
        for key, by_rank in alike.items():
            self._kernels[key] = {
                rank: ([one.node for one in those], np.array([one.nominal for one in those], dtype=np.float64))
                for rank, those in by_rank.items()
            }
        self._steps: dict[tuple[int, str], list[int]] = {}
        for node, rank, what in steps:
            self._steps.setdefault((rank, what), []).append(node)
        self._base = replace(base, delays={}, jitter=0.0)
        self._clocks = self._clocks_of(self._base)
        self._every = Clock(self._base, _NO_RANK)
        self._costs = [0] * count
        for (rank, what), nodes in self._steps.items():
            for node in nodes:
                self._costs[node] = _step(self._clocks[rank], what)
        for one in priced:
            self._costs[one.node] = _cost(self._clocks[one.rank], one)

    def of(self, timing: Timing) -> list[int]:
        """By node, in ``timing``; its delays are left out."""
        costs = list(self._costs)
        clocks = self._clocks_of(timing)
        for (rank, what), nodes in self._steps.items():
            cost = _step(clocks[rank], what)
            if cost != _step(self._clocks[rank], what):
                for node in nodes:
                    costs[node] = cost
        if timing.jitter or replace(timing, slow=self._base.slow, seed=self._base.seed, delays={}) != self._base:
            for one in self._priced:  # in the order of issue: that is how jitter is drawn
                costs[one.node] = _cost(clocks[one.rank], one)
            return costs
        # A clock of no rank says what is stretched on all of them.
        every, before = Clock(timing, _NO_RANK), self._every
        for (kernel, stream), by_rank in self._kernels.items():
            same = every.factor(kernel, stream) == before.factor(kernel, stream)
            for rank, (nodes, nominal) in by_rank.items():
                if same and clocks[rank].all_kernels == self._clocks[rank].all_kernels:
                    continue
                stretched = np.rint(nominal * clocks[rank].factor(kernel, stream)).astype(np.int64)
                for node, cost in zip(nodes, stretched.tolist(), strict=True):
                    costs[node] = cost
        for (kernel, stream), those in self._collectives.items():
            if every.factor(kernel, stream, collective=True) != before.factor(kernel, stream, collective=True):
                for one in those:
                    costs[one.node] = _cost(clocks[one.rank], one)
        return costs

    def delay(self, costs: list[int], timing: Timing) -> int:
        """Add the timing's delays; gives the first node whose cost changes."""
        first = len(costs)
        for key, (late, long) in timing.delays.items():
            one = self._by_op.get(key)
            if one is not None:
                costs[one.node] += long
                costs[one.late] += late
                first = min(first, one.late if late else one.node)
        return first

    def _clocks_of(self, timing: Timing) -> list[Clock]:
        return [Clock(timing, rank) for rank in range(self._world)]


def _cost(clock: Clock, one: Priced) -> int:
    if one.members:
        of = (one.kernel, int(one.nominal), one.members, one.stream, one.group, one.number)
        return clock.collective(*of, origin=one.origin)
    return clock.stretched(int(one.nominal), one.kernel, one.stream)


def _step(clock: Clock, what: str) -> int:
    return {"launch": clock.launch_ns, "synchronize": clock.synchronize_ns}.get(what, ASKING_NS)
