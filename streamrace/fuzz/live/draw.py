"""Draws random timings for a program on the simulated GPU, from the work of one of its runs."""

from __future__ import annotations

from random import Random

from streamrace.device.timing import Delay, Deviation, Jitter, Stretch, Timing
from streamrace.fuzz.live.run_record import RecordedRun
from streamrace.trace.records import HOST_STREAM

_US = 1000
_MOST = 4  # deviations
_BEYOND = 3  # doublings: the longest delay is this much longer than the run itself
_STRONGEST = 10  # doublings of a stretch
_MOST_PERCENT = 13  # doublings of a jitter's percentage
_SEEDS = 256
_KINDS = ("long",) * 4 + ("late",) * 3 + ("stream",) * 2 + ("kernel", "host", "rank", "jitter")


def draw(random: Random, run: RecordedRun) -> Timing:
    """Draw a timing: longer work, later collectives, slow streams, kernels, hosts and ranks, jitter.

    Each amount is a power of two. The same ``random`` and the same ``run`` give the same timing.
    """
    works = [
        work
        for rank in sorted(run)
        for work in run[rank].works.values()
        if run[rank].streams.get(work.place.stream) != HOST_STREAM
    ]
    if not works:
        return Timing()
    longest = (max(work.end for work in works) // _US).bit_length() + _BEYOND
    chosen: dict[object, Deviation] = {}
    for _ in range(random.randint(1, _MOST)):
        kind = random.choice(_KINDS)
        place = random.choice(works).place
        delay: Deviation
        if kind in ("long", "late"):
            late = kind == "late" and place.kernel.startswith("nccl::")
            delay = Delay(place, "late" if late else "long", _US << random.randint(0, longest))
            chosen[place, late] = delay
        elif kind == "jitter":
            chosen[kind] = Jitter(1 << random.randint(1, _MOST_PERCENT), random.randrange(_SEEDS))
        else:
            target = {
                "stream": f"stream:{place.stream}",
                "kernel": f"kernel:{place.kernel}",
                "host": f"host:{place.rank}",
                "rank": f"rank:{place.rank}",
            }[kind]
            chosen[target] = Stretch(target, 1 << random.randint(1, _STRONGEST))
    return Timing(tuple(chosen.values()))
