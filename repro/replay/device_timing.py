"""What work of a recording of the simulated GPU costs in a timing, as the device itself would time it.

A recording holds what each piece of work takes by itself, so the model that found it is not asked again. What a timing
changes about it is the device's own affair (:mod:`simgpu.timing`, ``simgpu/csrc/deviations.cpp``): the same numbers
come out here, to the nanosecond.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from repro.replay.deviations import Delay
from repro.replay.faults import ReplayError
from repro.replay.host import Priced
from repro.replay.names import Names, UnknownOperation
from repro.tokens import Jitter, Stretch, TokenError
from repro.trace import HOST_STREAM, Collective, Launch, StreamName, TraceRecord
from simgpu import hardware
from simgpu import timing as live
from simgpu.costs import Costs
from simgpu.hardware import Clock

_WORD = (1 << 64) - 1
Deviation = Delay | live.Delay | Stretch | Jitter


@dataclass(frozen=True)
class DeviceTiming:
    """A timing of a recorded run.

    ``costs``: by rank, as recorded; ``began``: what its clock showed then; ``stretches``: beyond those. A run that was
    timed by a hardware ``profile`` is stretched there, where streams and links have names.

    ``delays``: of single operations, by rank and number: nanoseconds by which it is late (a collective: by which this
    rank arrives later), and by which it takes longer.
    """

    costs: tuple[Costs, ...]
    began: tuple[int, ...] = ()
    profile: hardware.Timing | None = None
    stretches: tuple[Stretch, ...] = ()
    jitter: Jitter | None = None
    delays: Mapping[tuple[int, int], tuple[int, int]] = field(default_factory=dict)

    @classmethod
    def of(cls, records: Mapping[int, Sequence[TraceRecord]], infos: Sequence[Mapping[str, Any]]) -> DeviceTiming:
        """As recorded. Raises :class:`ReplayError` where the recording does not say it."""
        try:
            costs = tuple(
                Costs(
                    launch_ns=int(info["costs"]["launch_ns"]),
                    synchronize_ns=int(info["costs"]["synchronize_ns"]),
                    query_ns=int(info["costs"]["query_ns"]),
                    slow={str(what): float(factor) for what, factor in info["costs"]["slow"].items()},
                )
                for info in infos
            )
            began = tuple(int(info["began"]) for info in infos)
            told = infos[0].get("clock")
            profile = None if told is None else hardware.Timing.from_dict(told)
            recorded = live.Timing.parse(infos[0]["timing"]).deviations
            delays = {
                (rank, int(op)): (int(late), int(longer))
                for rank, info in enumerate(infos)
                for op, late, longer in info.get("delays", ())
            }
        except (TypeError, ValueError, KeyError, AttributeError, TokenError) as error:
            raise ReplayError("the recording does not say its timing: it is damaged") from error
        later = [one for one in recorded if not isinstance(one, Stretch)]  # stretches are in the costs already
        return cls(costs, began, profile, delays=delays).deviated(later, records)

    def deviated(
        self, deviations: Sequence[Deviation], records: Mapping[int, Sequence[TraceRecord]], names: Names | None = None
    ) -> DeviceTiming:
        """This timing with the deviations. ``names``: for delays that name their operation by its place in training.

        Raises :class:`repro.replay.names.UnknownOperation` for a delay of what is not there, and ValueError for a
        second jitter.
        """
        stretches, jitter, delays = list(self.stretches), self.jitter, dict(self.delays)
        slow = {} if self.profile is None else dict(self.profile.slow)
        drawn = [one for one in deviations if isinstance(one, Jitter)]
        if len(drawn) > 1:
            raise ValueError(f"a timing has one jitter, not {len(drawn)}")
        for one in deviations:
            if isinstance(one, Stretch) and self.profile is not None:
                slow[one.what] = slow.get(one.what, 1.0) * one.factor
            elif isinstance(one, Stretch):
                stretches.append(one)
            elif isinstance(one, Jitter):
                jitter = one
            else:
                if isinstance(one, live.Delay):
                    place = one.place.rank, _number(one.place, records.get(one.place.rank, ()))
                elif names is not None:
                    place = one.operation.rank, names.number(one.operation)
                late, long = delays.get(place, (0, 0))
                delays[place] = (late + one.ns, long) if one.how == "late" else (late, long + one.ns)
        profile = self.profile and replace(self.profile, slow=slow)
        return replace(self, profile=profile, stretches=tuple(stretches), jitter=jitter, delays=delays)

    @property
    def by_profile(self) -> hardware.Timing:
        """The machine of the recorded run. Raises :class:`ReplayError` where that was not timed by a profile."""
        if self.profile is None:
            raise ReplayError(
                "the recorded run was not timed by a hardware profile, so no other hardware can be tried on it"
            )
        return self.profile

    def on(self, profile: hardware.Timing) -> DeviceTiming:
        """The same on another machine: its collectives, launches and waits. Kernels keep what they took."""
        clocks = [Clock(profile, rank) for rank in range(len(self.costs))]
        costs = tuple(
            replace(cost, launch_ns=clock.launch_ns, synchronize_ns=clock.synchronize_ns)
            for cost, clock in zip(self.costs, clocks, strict=True)
        )
        return replace(self, profile=profile, costs=costs)

    def live(self) -> hardware.Timing:
        """The same, for a run on real ranks. Raises :class:`ReplayError` where that was not timed by a profile."""
        jitter, seed = (self.jitter.percent / 100, self.jitter.seed) if self.jitter else (0.0, 0)
        return replace(self.by_profile, jitter=jitter, seed=seed, delays=dict(self.delays))

    def of_rank(self, rank: int) -> Costs:
        """What work costs on ``rank``, beside what is drawn or delayed one by one."""
        costs = live.Timing(self.stretches).costs(rank, self.costs[rank])
        clock = self.clock(rank)
        if clock is None:
            return costs
        return replace(costs, launch_ns=clock.launch_ns, synchronize_ns=clock.synchronize_ns)

    def clock(self, rank: int) -> Clock | None:
        """What ``rank``'s work costs by the profile."""
        return None if self.profile is None else Clock(self.profile, rank)


def _number(place: live.Place, records: Iterable[TraceRecord]) -> int:
    """The number of a piece of work. The device counts what it is given; the host's own looks are none of it."""
    left = place.occurrence
    hosts = {one.stream for one in records if isinstance(one, StreamName) and one.name == HOST_STREAM}
    for record in records:
        if isinstance(record, (Launch, Collective)) and (record.stream, record.kernel) == (place.stream, place.kernel):
            left -= record.stream not in hosts
            if not left:
                return record.op
    raise UnknownOperation(
        f"rank {place.rank} has no {place.occurrence}. '{place.kernel}' on stream {place.stream}: this timing is of "
        "another program"
    )


class DevicePrices:
    """The costs of ``count`` nodes, as :class:`repro.replay.prices.Prices`."""

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
