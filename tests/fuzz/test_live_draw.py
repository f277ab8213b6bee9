"""Timings at random for a live program: of its own works, the same from the same seed, and each can be written down."""

from __future__ import annotations

from random import Random

from streamrace.device.timing import Delay, Stretch, Timing
from streamrace.fuzz.live.draw import draw
from streamrace.fuzz.live.run_record import Recorded
from streamrace.trace.records import HOST_STREAM, Collective, Launch, StreamName, TraceRecord


def recorded(rank: int) -> Recorded:
    """A rank with one kernel, one collective, and a read by the host."""
    records: list[TraceRecord] = [
        StreamName(0, "default"),
        StreamName(65, HOST_STREAM),
        Launch(1, 0, "aten::mul", (), (), 0, 0, 0, 3000),
        Collective(2, 3, "nccl::all_reduce", (), (), 0, 0, 3000, 9000, 0, 1, -1, 0),
        Launch(3, 65, "aten::sum", (), (), 0, 0, 9000, 9000),
    ]
    return Recorded.of(rank, records)


def test_timings_are_of_the_run_and_the_same_from_the_same_seed() -> None:
    run = {rank: recorded(rank) for rank in range(2)}
    timings = [draw(Random(seed), run) for seed in range(200)]
    assert timings == [draw(Random(seed), run) for seed in range(200)]
    assert all(Timing.parse(str(timing)) == timing and timing.deviations for timing in timings)
    found = [one for timing in timings for one in timing.deviations]
    delays = [one for one in found if isinstance(one, Delay)]
    assert {(one.place.rank, one.place.kernel, one.how) for one in delays} == {
        *((rank, "aten::mul", "long") for rank in run),
        *((rank, "nccl::all_reduce", how) for rank in run for how in ("long", "late")),
    }
    assert max(one.ns for one in delays) == 1000 << 7  # the run takes 9 us
    assert {one.what.partition(":")[0] for one in found if isinstance(one, Stretch)} == {
        "stream", "kernel", "host", "rank",
    }  # fmt: skip


def test_a_run_without_work_has_only_the_plain_timing() -> None:
    assert draw(Random(0), {0: Recorded(0)}) == Timing()
