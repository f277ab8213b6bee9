"""The cost model: how long each operation of a recording takes in a timing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from replay.device_timing import DeviceTiming
from replay.host import Costed
from simgpu.hardware import Clock
from simgpu.tokens import Jitter

_WORD = (1 << 64) - 1


class _Kind(NamedTuple):
    """Operations that every timing stretches by the same factor."""

    rank: int
    kernel: str
    stream: str
    stream_name: str
    collective: bool


class CostModel:
    """Computes the costs of the graph's ``count`` nodes in any timing."""

    def __init__(self, count: int, costed: Sequence[Costed], steps: Iterable[tuple[int, int, str]]) -> None:
        self._count = count
        self._steps = list(steps)
        self._by_op = {(one.rank, one.op): one for one in costed}
        alike: dict[_Kind, list[Costed]] = {}
        for one in costed:
            kind = _Kind(one.rank, one.kernel, one.stream, one.stream_name, bool(one.members))
            alike.setdefault(kind, []).append(one)
        self._alike = list(alike.items())
        # Of each operation, those of a kind side by side.
        of = [one for _, those in self._alike for one in those]
        self._sizes = np.array([len(those) for _, those in self._alike], dtype=np.int64)
        self._ends = np.cumsum(self._sizes)
        self._nodes = np.array([one.node for one in of], dtype=np.int64)
        self._nominal = np.array([one.nominal for one in of], dtype=np.float64)
        self._ops = np.array([one.op for one in of], dtype=np.uint64)
        self._ranks = np.array([one.rank for one in of], dtype=np.int64)
        self._collective = np.array([bool(one.members) for one in of], dtype=np.bool_)

    def of(self, timing: DeviceTiming) -> list[int]:
        """Nanoseconds by node in ``timing``, without its delays."""
        costs = np.zeros(self._count, dtype=np.int64)
        ranks = range(len(timing.costs))
        by_rank, clocks = [timing.of_rank(rank) for rank in ranks], [timing.clock(rank) for rank in ranks]
        for node, rank, what in self._steps:
            now = by_rank[rank]
            lengths_of = {"launch": now.launch_ns, "synchronize": now.synchronize_ns, "begin": timing.began[rank]}
            costs[node] = lengths_of.get(what, now.query_ns)
        nominal = self._nominal.copy()
        factors = np.ones(len(self._alike), dtype=np.float64)
        for at, (kind, those) in enumerate(self._alike):
            factors[at] = by_rank[kind.rank].factor(kind.kernel, int(kind.stream))
            clock = clocks[kind.rank]
            if clock is not None and kind.collective:
                nominal[self._ends[at] - len(those) : self._ends[at]] = _by_profile(clock, kind, those)
            elif clock is not None:
                factors[at] = clock.factor(kind.kernel, kind.stream_name) * factors[at]
        stretched = nominal * np.repeat(factors, self._sizes)
        # The device rounds a half up, Python (which rounds the costs of collectives) to the even neighbour.
        lengths = np.where(self._collective, np.rint(stretched), _rounded(stretched))
        if timing.jitter is not None:
            lengths = lengths + self._drawn(timing.jitter, lengths, len(ranks))
        costs[self._nodes] = lengths.astype(np.int64)
        made: list[int] = costs.tolist()
        return made

    def _drawn(self, jitter: Jitter, lengths: npt.NDArray[np.float64], world: int) -> npt.NDArray[np.float64]:
        """``simgpu/csrc/deviations.cpp``: a random number for each operation, from 0 to below 1."""
        seeds = np.array([_mixed_one(_mixed_one(jitter.seed) + rank) for rank in range(world)], dtype=np.uint64)
        with np.errstate(over="ignore"):
            drawn = (_mixed(self._ops + seeds[self._ranks]) >> np.uint64(11)).astype(np.float64) * 2.0**-53
        return _rounded(lengths * drawn * jitter.percent / 100)

    def delay(self, costs: list[int], timing: DeviceTiming) -> int:
        """Add the timing's delays; gives the first node whose cost changes."""
        first = len(costs)
        for key, (late, long) in timing.delays.items():
            one = self._by_op.get(key)
            if one is not None:
                late *= bool(one.members)
                costs[one.node] += long
                costs[one.late] += late
                first = min(first, one.late if late else one.node)
        return first


def _by_profile(clock: Clock, kind: _Kind, those: Sequence[Costed]) -> list[int]:
    """Nanoseconds that collectives take on the hardware of ``clock``."""
    link = kind.stream_name
    return [
        clock.collective(kind.kernel, one.nbytes, one.members, link, one.group, one.number, origin=one.origin)
        for one in those
    ]


def _rounded(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """``std::llround`` of what is not below zero."""
    whole = np.floor(values)
    return whole + (values - whole >= 0.5)


def _mixed(values: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """SplitMix64 (Steele, Lea and Flood 2014)."""
    values = values + np.uint64(0x9E3779B97F4A7C15)
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    made: npt.NDArray[np.uint64] = values ^ (values >> np.uint64(31))
    return made


def _mixed_one(value: int) -> int:
    with np.errstate(over="ignore"):
        return int(_mixed(np.array([value & _WORD], dtype=np.uint64))[0])
