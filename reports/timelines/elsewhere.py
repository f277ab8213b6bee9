"""The same two accesses in another run of the program, in another timing: that of a witness.

Such a run leaves no trace behind; what its accesses and their neighbours did is taken from it while it is there
(:mod:`streamrace.fuzz.live.recorded`).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import PurePath

from streamrace.fuzz.live.examine import RacingPair
from streamrace.fuzz.live.recorded import Recorded, RecordedRun
from streamrace.reports.timelines.lanes import HOST, lane
from streamrace.reports.timelines.moment import around
from streamrace.reports.window import Kind, Slice, Window
from streamrace.trace.records import Frame

MOST = 400  # slices, as they are kept in a file for each race


def window(run: RecordedRun, pair: RacingPair, *, most: int = MOST) -> Window | None:
    """The window around both in that run; None: it has not come to both."""
    recorded = run.get(pair.rank)
    if recorded is None:
        return None
    ops = [op for op in map(recorded.works.number, (pair.first, pair.second)) if op is not None]
    if len(ops) < 2 or any(recorded.works[op].end < 0 for op in ops):
        return None
    first, second = (_work(recorded, op) for op in ops)
    start, end = around((first.start, first.end), (second.start, second.end))

    def near(one: Slice) -> tuple[int, int, int]:
        return _away(one, first, second), one.start, one.op

    others: list[Slice] = []
    count = 0
    for one in _under_way(recorded, start, end):
        if one in (first, second):
            continue
        count += 1
        others.append(one)
        if len(others) == 4 * most:  # between the two may be the whole run
            others = sorted(others, key=near)[:most]
    kept = [*sorted(others, key=near)[: max(0, most - 2)], first, second]
    return Window(
        start=start,
        end=end,
        lanes=tuple(sorted({HOST, *(one.lane for one in kept)}, key=lane)),
        slices=tuple(sorted(kept, key=lambda one: (one.start, one.op, one.end))),
        first=first,
        second=second,
        left_out=count + 2 - len(kept),
    )


def _under_way(recorded: Recorded, start: int, end: int) -> Iterator[Slice]:
    """What ran in that time, and when the host waited."""
    for op, _ in recorded.works.during(start, end):
        yield _work(recorded, op)
    for one in recorded.waits:
        if start <= one.end and one.start <= end:
            yield Slice(HOST, one.how, "", one.start, one.end, -1, "wait", _place(recorded.stack(one.stack)))


def _work(recorded: Recorded, op: int) -> Slice:
    work = recorded.works[op]
    kernel = work.place.kernel
    kind: Kind = "collective" if kernel.startswith("nccl::") else "kernel"
    name = recorded.streams.get(work.place.stream, f"stream {work.place.stream}")
    where = _place(recorded.frames(op))
    return Slice(name, kernel.rpartition("::")[2], "", work.start, work.end, op, kind, where)


def _away(one: Slice, *sides: Slice) -> int:
    return min(max(0, one.start - side.end, side.start - one.end) for side in sides)


def _place(frames: tuple[Frame, ...]) -> str:
    if not frames:
        return ""
    return f"{PurePath(frames[0].file).name}:{frames[0].line} {frames[0].function}"
