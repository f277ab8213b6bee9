"""The cost model: computes how long each operation of a recording takes in a timing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from streamrace.device.hardware import Clock
from streamrace.device.tokens import Jitter
from streamrace.replay.device_timing import DeviceTiming
from streamrace.replay.host import Costed, HostAction

_WORD = (1 << 64) - 1
_MASKS = 256  # cached patterns

_Costs = npt.NDArray[np.int64]
_Lengths = npt.NDArray[np.float64]
_Mask = npt.NDArray[np.bool_]


class _Kind(NamedTuple):
    """Identifies the operations that every timing stretches by the same factor."""

    rank: int
    kernel: str
    stream: str
    stream_name: str
    collective: bool


class CostModel:
    """Computes the costs of the graph's ``count`` nodes in any timing."""

    def __init__(self, count: int, costed: Sequence[Costed], steps: Iterable[HostAction]) -> None:
        self._count = count
        by_step: dict[tuple[int, str], list[HostAction]] = {}
        for action in steps:
            by_step.setdefault((action.rank, action.kind), []).append(action)
        self._steps = [
            (*of, np.array([action.node for action in alike]), np.array([action.times for action in alike]))
            for of, alike in by_step.items()
        ]
        self._by_op = {(record.rank, record.op): record for record in costed}
        alike: dict[_Kind, list[Costed]] = {}
        for record in costed:
            kind = _Kind(record.rank, record.kernel, record.stream, record.stream_name, bool(record.members))
            alike.setdefault(kind, []).append(record)
        self._alike = list(alike.items())
        # Per operation, with operations of the same kind next to each other.
        of = [record for _, records in self._alike for record in records]
        self._sizes = np.array([len(records) for _, records in self._alike], dtype=np.int64)
        self._ends = np.cumsum(self._sizes)
        self._nodes = np.array([record.node for record in of], dtype=np.int64)
        self._nominal = np.array([record.nominal for record in of], dtype=np.float64)
        self._ops = np.array([record.op for record in of], dtype=np.uint64)
        self._ranks = np.array([record.rank for record in of], dtype=np.int64)
        self._collective = np.array([bool(record.members) for record in of], dtype=np.bool_)
        self._single = np.array([len(record.members) == 1 for record in of], dtype=np.bool_)
        kinds = [kind for kind, _ in self._alike]
        self._kinds_of_collectives = np.array([kind.collective for kind in kinds], dtype=np.bool_)
        of_rank = {kind.rank: np.array([kind.rank == other.rank for other in kinds], dtype=np.bool_) for kind in kinds}
        self._of_rank = list(of_rank.items())
        # Texts that patterns match: the kernel, the stream's number, and the stream's name (of a collective: its link).
        self._named = [
            {
                "kernel": f"kernel:{kind.kernel}",
                "stream": f"stream:{kind.stream}",
                "name": f"{'link' if kind.collective else 'stream'}:{kind.stream_name}",
            }
            for kind in kinds
        ]
        self._masks: dict[tuple[str, str], _Mask] = {}
        self._alone: tuple[object, _Lengths] | None = None  # cached for one machine

    def of(self, timing: DeviceTiming) -> _Costs:
        """Return the cost of each node in ``timing`` in nanoseconds, without the timing's delays."""
        costs = np.zeros(self._count, dtype=np.int64)
        ranks = range(len(timing.costs))
        by_rank = [timing.of_rank(rank) for rank in ranks]
        for rank, step, nodes, times in self._steps:
            now = by_rank[rank]
            lengths_of = {
                "launch": now.launch_ns,
                "synchronize": now.synchronize_ns,
                "call": now.call_ns,
                "ask": now.query_ns,
                "begin": timing.began[rank],
            }
            costs[nodes] = lengths_of[step] * times
        nominal, factors = self._nominal, np.ones(len(self._alike), dtype=np.float64)
        for rank, mask in self._of_rank:
            for pattern, value in by_rank[rank].slow.items():
                factors[mask & (self._matching("kernel", pattern) | self._matching("stream", pattern))] *= value
        if timing.profile is not None:
            nominal, by_clock = self._by_profile([Clock(timing.profile, rank) for rank in ranks])
            factors = by_clock * factors
        stretched = nominal * np.repeat(factors, self._sizes)
        # The device rounds a half up, Python (which rounds the costs of collectives) to the even neighbour.
        lengths = np.where(self._collective, np.rint(stretched), _rounded(stretched))
        if timing.jitter is not None:
            lengths = lengths + self._drawn(timing.jitter, lengths, len(ranks))
        costs[self._nodes] = lengths.astype(np.int64)
        return costs

    def _matching(self, field: str, pattern: str) -> _Mask:
        """Return a mask over the kinds: True where ``pattern`` matches the kind's ``what``."""
        mask = self._masks.get((field, pattern))
        if mask is None:
            if len(self._masks) >= _MASKS:
                self._masks.clear()
            mask = np.array([fnmatchcase(of[field], pattern) for of in self._named], dtype=np.bool_)
            self._masks[field, pattern] = mask
        return mask

    def _by_profile(self, clocks: Sequence[Clock]) -> tuple[_Lengths, _Lengths]:
        """Return each operation's unstretched length and each kind's factor (a collective's length includes it)."""
        (slow, timing), kinds = (clocks[0].slow, clocks[0].timing), len(self._alike)
        kernel, name = np.ones(kinds, dtype=np.float64), np.ones(kinds, dtype=np.float64)
        for pattern, value in slow.items():  # as Clock.factor multiplies them
            kernel[self._matching("kernel", pattern)] *= value
            name[self._matching("name", pattern)] *= value
        everything = np.ones(kinds, dtype=np.float64)
        for rank, mask in self._of_rank:
            everything[mask & ~self._kinds_of_collectives] = clocks[rank].all_kernels
        factors = everything * name * kernel
        nominal = self._nominal.copy()
        if timing.jitter:
            for at in np.flatnonzero(self._kinds_of_collectives).tolist():
                kind, records = self._alike[at]
                nominal[self._ends[at] - len(records) : self._ends[at]] = _one_by_one(clocks[kind.rank], kind, records)
        elif self._collective.any():
            alone = self._alone_by(clocks)
            stretched = np.rint(alone * np.where(self._single, 1.0, np.repeat(factors, self._sizes)))
            nominal = np.where(self._collective, stretched, nominal)
        factors[self._kinds_of_collectives] = 1.0
        return nominal, factors

    def _alone_by(self, clocks: Sequence[Clock]) -> _Lengths:
        """Return the unstretched length of each collective by these clocks, by operation; 0 for kernels."""
        timing = clocks[0].timing
        machine = timing.profile, timing.nodes_of, timing.scale
        if self._alone is None or self._alone[0] != machine:
            alone = np.zeros(len(self._nominal), dtype=np.float64)
            for at, (kind, records) in enumerate(self._alike):
                if kind.collective:
                    clock = clocks[kind.rank]
                    alone[self._ends[at] - len(records) : self._ends[at]] = [
                        clock.alone(kind.kernel, record.nbytes, record.members, record.origin) for record in records
                    ]
            self._alone = machine, alone
        return self._alone[1]

    def _drawn(self, jitter: Jitter, lengths: npt.NDArray[np.float64], world: int) -> npt.NDArray[np.float64]:
        """Draw each operation's extra length from the jitter, as ``streamrace/device/csrc/deviations.cpp`` does."""
        seeds = np.array([_mixed_one(_mixed_one(jitter.seed) + rank) for rank in range(world)], dtype=np.uint64)
        with np.errstate(over="ignore"):
            drawn = (_mixed(self._ops + seeds[self._ranks]) >> np.uint64(11)).astype(np.float64) * 2.0**-53
        return _rounded(lengths * drawn * jitter.percent / 100)

    def delay(self, costs: _Costs, timing: DeviceTiming) -> int:
        """Add the timing's delays to ``costs``; return the first node whose cost changes."""
        first = len(costs)
        for key, (late, long) in timing.delays.items():
            record = self._by_op.get(key)
            if record is not None:
                late *= bool(record.members)
                costs[record.node] += long
                costs[record.late] += late
                first = min(first, record.late if late else record.node)
        return first


def _one_by_one(clock: Clock, kind: _Kind, records: Sequence[Costed]) -> list[int]:
    """Return the nanoseconds that each collective takes on the hardware of ``clock``."""
    link = kind.stream_name
    return [
        clock.collective(kind.kernel, work.nbytes, work.members, link, work.group, work.number, origin=work.origin)
        for work in records
    ]


def _rounded(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Round as ``std::llround`` does, for values that are not negative."""
    floors = np.floor(values)
    return floors + (values - floors >= 0.5)


def _mixed(values: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Hash each value with SplitMix64 (Steele, Lea and Flood 2014)."""
    values = values + np.uint64(0x9E3779B97F4A7C15)
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: npt.NDArray[np.uint64] = values ^ (values >> np.uint64(31))
    return mixed


def _mixed_one(value: int) -> int:
    with np.errstate(over="ignore"):
        return int(_mixed(np.array([value & _WORD], dtype=np.uint64))[0])
