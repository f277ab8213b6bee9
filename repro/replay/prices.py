"""What the moments of a recording cost in a timing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from repro.replay.device_timing import DeviceTiming
from repro.replay.host import Priced
from repro.tokens import Jitter
from simgpu.hardware import Clock

_WORD = (1 << 64) - 1


class Prices:
    """The costs of ``count`` nodes."""

    def __init__(self, count: int, priced: Sequence[Priced], steps: Iterable[tuple[int, int, str]]) -> None:
        self._count = count
        self._steps = list(steps)
        self._by_op = {(one.rank, one.op): one for one in priced}
        alike: dict[tuple[int, str, str, str, bool], list[Priced]] = {}
        for one in priced:
            alike.setdefault((one.rank, one.kernel, one.stream, one.stream_name, bool(one.members)), []).append(one)
        self._alike = {key: _Alike(those) for key, those in alike.items()}

    def of(self, timing: DeviceTiming) -> list[int]:
        """By node, in ``timing``; its delays are left out."""
        costs = np.zeros(self._count, dtype=np.int64)
        by_rank = [timing.of_rank(rank) for rank in range(len(timing.costs))]
        for node, rank, what in self._steps:
            now = by_rank[rank]
            lengths_of = {"launch": now.launch_ns, "synchronize": now.synchronize_ns, "begin": timing.began[rank]}
            costs[node] = lengths_of.get(what, now.query_ns)
        clocks = [timing.clock(rank) for rank in range(len(timing.costs))]
        for (rank, kernel, stream, name, collective), those in self._alike.items():
            factor, clock = by_rank[rank].factor(kernel, int(stream)), clocks[rank]
            nominal = those.nominal
            if clock is not None and collective:
                nominal = those.by_profile(clock, kernel, name)
            elif clock is not None:
                factor = clock.factor(kernel, name) * factor
            stretched = nominal * factor
            # The device rounds a half up, Python (who prices collectives) to the even neighbour.
            lengths = np.rint(stretched) if collective else _rounded(stretched)
            if timing.jitter is not None:
                lengths = lengths + _drawn(timing.jitter, rank, those.ops, lengths)
            costs[those.nodes] = lengths.astype(np.int64)
        made: list[int] = costs.tolist()
        return made

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


class _Alike:
    """Work of one rank that a timing stretches alike."""

    def __init__(self, those: Sequence[Priced]) -> None:
        self.nodes = np.array([one.node for one in those], dtype=np.int64)
        self.nominal = np.array([one.nominal for one in those], dtype=np.float64)
        self.ops = np.array([one.op for one in those], dtype=np.uint64)
        self._those = those

    def by_profile(self, clock: Clock, kernel: str, link: str) -> npt.NDArray[np.float64]:
        """How long they take as collectives of such hardware."""
        made = [
            clock.collective(kernel, one.nbytes, one.members, link, one.group, one.number, origin=one.origin)
            for one in self._those
        ]
        return np.array(made, dtype=np.float64)


def _rounded(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """``std::llround`` of what is not below zero."""
    whole = np.floor(values)
    return whole + (values - whole >= 0.5)


def _drawn(
    jitter: Jitter, rank: int, ops: npt.NDArray[np.uint64], lengths: npt.NDArray[np.float64]
) -> npt.NDArray[np.float64]:
    """``simgpu/csrc/deviations.cpp``: a number of its own for each operation, from 0 to below 1."""
    seed = _mixed_one(_mixed_one(jitter.seed) + rank)
    with np.errstate(over="ignore"):
        drawn = (_mixed(ops + np.uint64(seed)) >> np.uint64(11)).astype(np.float64) * 2.0**-53
    return _rounded(lengths * drawn * jitter.percent / 100)


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
