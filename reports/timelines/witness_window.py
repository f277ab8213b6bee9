"""Builds the window around the same two accesses in another timing of the program: that of a witness.

A witness's run leaves no trace; its accesses and their neighbours are taken from memory while the run exists
(:mod:`streamrace.fuzz.live.run_record`).
"""

from __future__ import annotations

from collections.abc import Iterator

from streamrace.fuzz.live.harm import RacingPair
from streamrace.fuzz.live.run_record import Recorded, RecordedRun
from streamrace.reports.timelines.lanes import HOST, lane
from streamrace.reports.timelines.moment import around
from streamrace.reports.window import Kind, Slice, Window
from streamrace.trace import wording
from streamrace.trace.records import Frame

MOST = 400  # slices; few, as a file keeps so many per race


def window(run: RecordedRun, pair: RacingPair, *, most: int = MOST) -> Window | None:
    """Return the window around both accesses in that run; None if the run did not reach both."""
    recorded = run.get(pair.rank)
    if recorded is None:
        return None
    ops = [op for op in map(recorded.works.number, (pair.first, pair.second)) if op is not None]
    if len(ops) < 2 or any(recorded.works[op].end < 0 for op in ops):
        return None
    first, second = (_work(recorded, op) for op in ops)
    start, end = around((first.start, first.end), (second.start, second.end))

    def near(piece: Slice) -> tuple[int, int, int]:
        return _away(piece, first, second), piece.start, piece.op

    nearby: list[Slice] = []
    count = 0
    for piece in _under_way(recorded, start, end):
        if piece in (first, second):
            continue
        count += 1
        nearby.append(piece)
        if len(nearby) == 4 * most:  # the whole run may be between the two
            nearby = sorted(nearby, key=near)[:most]
    shown = [*sorted(nearby, key=near)[: max(0, most - 2)], first, second]
    return Window(
        start=start,
        end=end,
        lanes=tuple(sorted({HOST, *(piece.lane for piece in shown)}, key=lane)),
        slices=tuple(sorted(shown, key=lambda piece: (piece.start, piece.op, piece.end))),
        first=first,
        second=second,
        left_out=count + 2 - len(shown),
    )


def _under_way(recorded: Recorded, start: int, end: int) -> Iterator[Slice]:
    """Yield the work that ran in that time, and the host's waits."""
    for op, _ in recorded.works.during(start, end):
        yield _work(recorded, op)
    for wait in recorded.waits:
        if start <= wait.end and wait.start <= end:
            yield Slice(HOST, wait.how, "", wait.start, wait.end, -1, "wait", _place(recorded.stack(wait.stack)))


def _work(recorded: Recorded, op: int) -> Slice:
    work = recorded.works[op]
    kernel = work.place.kernel
    kind: Kind = "collective" if kernel.startswith("nccl::") else "kernel"
    name = recorded.streams.get(work.place.stream, f"stream {work.place.stream}")
    where = _place(recorded.frames(op))
    return Slice(name, wording.operator(kernel), "", work.start, work.end, op, kind, where)


def _away(piece: Slice, *sides: Slice) -> int:
    return min(max(0, piece.start - side.end, side.start - piece.end) for side in sides)


def _place(frames: tuple[Frame, ...]) -> str:
    return wording.frame(frames[0]) if frames else ""
