"""Which bytes a launch touches, however its ranges are recorded."""

from __future__ import annotations

from streamrace.trace.records import Access, Launch, TraceRecord

MANY = (
    64  # ranges of one launch, beyond which a dry run records the same bytes in few (streamrace/device/csrc/trace.cpp)
)


def touched(accesses: tuple[Access, ...]) -> set[tuple[int, int]]:
    """Each byte, with its block."""
    found: set[tuple[int, int]] = set()
    for block, lo, hi, layout in accesses:
        item, sizes, strides = layout or (hi - lo, (), ())
        starts = [lo]
        for size, stride in zip(sizes, strides, strict=True):
            starts = [start + number * stride for start in starts for number in range(size)]
        found |= {(block, byte) for start in starts for byte in range(start, start + item)}
    return found


def rehearsed_alike(live: TraceRecord, dry: TraceRecord) -> bool:
    """Is a dry run's record the live run's? Only of very many ranges may it tell the same bytes otherwise."""
    if live == dry:
        return True
    if not isinstance(live, Launch) or not isinstance(dry, Launch) or max(len(live.reads), len(live.writes)) <= MANY:
        return False
    if live._replace(reads=(), writes=()) != dry._replace(reads=(), writes=()):
        return False
    return touched(live.reads) == touched(dry.reads) and touched(live.writes) == touched(dry.writes)
