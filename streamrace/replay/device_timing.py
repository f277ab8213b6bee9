"""Defines the timing of a recorded run: the cost of each piece of work, as the device itself would compute it.

A recording holds the unstretched length of each piece of work, so the model that computed it is not evaluated again.
The device defines how a timing changes that length (:mod:`streamrace.device.timing`,
``streamrace/device/csrc/deviations.cpp``); :mod:`streamrace.replay.cost_model` has the same result to the nanosecond.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from streamrace.device import hardware
from streamrace.device import timing as live
from streamrace.device.costs import Costs
from streamrace.device.hardware import Clock
from streamrace.device.tokens import Jitter, Stretch, TokenError
from streamrace.replay.deviations import OperationDelay
from streamrace.replay.faults import ReplayError
from streamrace.replay.names import Names, UnknownOperation
from streamrace.trace.records import HOST_STREAM, Collective, Launch, StreamName, TraceRecord

Deviation = OperationDelay | live.Delay | Stretch | Jitter


@dataclass(frozen=True)
class DeviceTiming:
    """A timing of a recorded run.

    ``costs``: by rank, as recorded; ``began``: by rank, the clock at the recorded start; ``stretches``: in addition to
    those in ``costs``. A run timed by a hardware ``profile`` is stretched there, where streams and links have names.

    ``delays``: of single operations, by rank and operation number: the nanoseconds by which the operation is late (a
    collective: by which this rank arrives later), and by which it takes longer.
    """

    costs: tuple[Costs, ...]
    began: tuple[int, ...] = ()
    profile: hardware.HardwareTiming | None = None
    stretches: tuple[Stretch, ...] = ()
    jitter: Jitter | None = None
    delays: Mapping[tuple[int, int], tuple[int, int]] = field(default_factory=dict)

    @classmethod
    def of(cls, records: Mapping[int, Sequence[TraceRecord]], infos: Sequence[Mapping[str, Any]]) -> DeviceTiming:
        """Return the timing as recorded. Raises :class:`ReplayError` if the recording does not hold it."""
        try:
            costs = tuple(
                Costs(
                    launch_ns=int(info["costs"]["launch_ns"]),
                    synchronize_ns=int(info["costs"]["synchronize_ns"]),
                    query_ns=int(info["costs"]["query_ns"]),
                    call_ns=int(info["costs"].get("call_ns", 0)),
                    slow={str(target): float(factor) for target, factor in info["costs"]["slow"].items()},
                )
                for info in infos
            )
            began = tuple(int(info["began"]) for info in infos)
            clock = infos[0].get("clock")
            profile = None if clock is None else hardware.HardwareTiming.from_dict(clock)
            recorded = live.Timing.parse(infos[0]["timing"]).deviations
            delays = {
                (rank, int(op)): (int(late), int(longer))
                for rank, info in enumerate(infos)
                for op, late, longer in info.get("delays", ())
            }
        except (TypeError, ValueError, KeyError, AttributeError, TokenError) as error:
            raise ReplayError("the recording does not say its timing: it is damaged") from error
        later = [entry for entry in recorded if not isinstance(entry, Stretch)]  # costs already include the stretches
        return cls(costs, began, profile, delays=delays).deviated(later, records)

    def deviated(
        self, deviations: Sequence[Deviation], records: Mapping[int, Sequence[TraceRecord]], names: Names | None = None
    ) -> DeviceTiming:
        """Return this timing with the deviations. ``names``: needed for an :class:`OperationDelay`.

        Raises :class:`streamrace.replay.names.UnknownOperation` for a delay of an operation that does not exist, and
        ValueError for a second jitter.
        """
        stretches, jitter, delays = list(self.stretches), self.jitter, dict(self.delays)
        slow = {} if self.profile is None else dict(self.profile.slow)
        drawn = [deviation for deviation in deviations if isinstance(deviation, Jitter)]
        if len(drawn) > 1:
            raise ValueError(f"a timing has one jitter, not {len(drawn)}")
        for deviation in deviations:
            if isinstance(deviation, Stretch) and self.profile is not None:
                slow[deviation.what] = slow.get(deviation.what, 1.0) * deviation.factor
            elif isinstance(deviation, Stretch):
                stretches.append(deviation)
            elif isinstance(deviation, Jitter):
                jitter = deviation
            else:
                if isinstance(deviation, live.Delay):
                    place = deviation.place.rank, _number(deviation.place, records.get(deviation.place.rank, ()))
                elif names is not None:
                    place = deviation.operation.rank, names.number(deviation.operation)
                late, long = delays.get(place, (0, 0))
                delays[place] = (late + deviation.ns, long) if deviation.how == "late" else (late, long + deviation.ns)
        profile = self.profile and replace(self.profile, slow=slow)
        return replace(self, profile=profile, stretches=tuple(stretches), jitter=jitter, delays=delays)

    @property
    def by_profile(self) -> hardware.HardwareTiming:
        """Return the machine of the recorded run. Raises :class:`ReplayError` if the run was not timed by a profile."""
        if self.profile is None:
            raise ReplayError(
                "the recorded run was not timed by a hardware profile, so no other hardware can be tried on it"
            )
        return self.profile

    def on(self, profile: hardware.HardwareTiming) -> DeviceTiming:
        """Return this timing on another machine: its collectives, launches and waits. Kernels keep their lengths."""
        clocks = [Clock(profile, rank) for rank in range(len(self.costs))]
        costs = tuple(replace(cost, **clock.of_host) for cost, clock in zip(self.costs, clocks, strict=True))
        return replace(self, profile=profile, costs=costs)

    def live(self) -> hardware.HardwareTiming:
        """Return this timing for a run on real ranks. Raises :class:`ReplayError` without a hardware profile."""
        jitter, seed = (self.jitter.percent / 100, self.jitter.seed) if self.jitter else (0.0, 0)
        return replace(self.by_profile, jitter=jitter, seed=seed, delays=dict(self.delays))

    def of_rank(self, rank: int) -> Costs:
        """Return the costs of work on ``rank``, without jitter and without delays of single operations."""
        costs = live.Timing(self.stretches).costs(rank, self.costs[rank])
        clock = self.clock(rank)
        if clock is None:
            return costs
        return replace(costs, **clock.of_host)

    def clock(self, rank: int) -> Clock | None:
        """Return the clock that computes the costs of ``rank`` from the profile; None without a profile."""
        return None if self.profile is None else Clock(self.profile, rank)


def _number(place: live.Place, records: Iterable[TraceRecord]) -> int:
    """Return the operation number of the work at ``place``; operations on the host's own stream are not counted."""
    remaining = place.occurrence
    hosts = {record.stream for record in records if isinstance(record, StreamName) and record.name == HOST_STREAM}
    for record in records:
        if isinstance(record, (Launch, Collective)) and (record.stream, record.kernel) == (place.stream, place.kernel):
            remaining -= record.stream not in hosts
            if not remaining:
                return record.op
    raise UnknownOperation(
        f"rank {place.rank} has no {place.occurrence}. '{place.kernel}' on stream {place.stream}: this timing is of "
        "another program"
    )
