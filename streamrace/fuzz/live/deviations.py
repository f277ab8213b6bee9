"""Describes in words how the timing of a live run differs from the plain one."""

from __future__ import annotations

from collections.abc import Callable

from streamrace.device.timing import Deviation, Jitter, Place, Stretch
from streamrace.trace.wording import duration


def words(deviation: Deviation, *, work: Callable[[Place], str], stream: Callable[[int], str]) -> str:
    """Return a clause about a deviation. ``work``: names a delayed operation; ``stream``: names a stream by number."""
    if isinstance(deviation, Jitter):
        return f"all work takes up to {deviation.percent} % longer, drawn from seed {deviation.seed}"
    if isinstance(deviation, Stretch):
        kind, _, name = deviation.what.partition(":")
        if kind == "host":
            slow = f"the host of rank {name}" if name else "the host"
        elif kind == "rank":
            slow = f"rank {name}"
        else:
            slow = stream(int(name)) if kind == "stream" and name.isdecimal() else f"{kind} {name!r}"
        return f"{slow} is {deviation.factor} times as slow"
    late = f"starts {duration(deviation.ns)} later"
    return f"{work(deviation.place)} {late if deviation.how == 'late' else f'takes {duration(deviation.ns)} longer'}"
