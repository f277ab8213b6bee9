"""Describes how long a program's work on the device takes, as a short text that can be passed around.

Durations come from :mod:`streamrace.device.costs`; a timing deviates from them. ``streamrace device --timing TOKEN
script.py`` runs a script in it, and the same timing executes the same program in the same order. A token is
comma-separated::

    t1,x4:stream:3,x2:host,jitter:20:7,0/0/aten::mm/3+64us,1/2/nccl::all_reduce/1@+64us

* ``t1``: the version of this form,
* ``x4:what``: all work of ``stream:3`` (its number), ``kernel:aten::mm`` or ``rank:1`` takes 4 times as long, or each
  launch by the ``host`` or ``host:1``. Stream and kernel are patterns (``fnmatch``),
* ``jitter:20:7``: each operation takes up to 20 % longer, drawn from seed 7,
* ``rank/stream/kernel/occurrence`` and ``+64us``: the rank's third ``aten::mm`` on stream 0 takes 64 us longer.
  ``@+64us``, for collectives: the rank arrives 64 us later, so the collective starts later on all its ranks. Units are
  ns, us, ms and s.

Names are encoded as in :mod:`streamrace.device.tokens`. Work is identified by stream and kernel, not by its number in
the trace, so a token keeps its meaning when the program changes elsewhere. This module imports nothing of torch.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from streamrace.device import tokens
from streamrace.device.tokens import How, Jitter, Stretch, Wrong, decoded, encoded, number, shown, within

if TYPE_CHECKING:
    from streamrace.device.costs import Costs

EXAMPLE = "t1,x4:stream:3,0/0/aten::mm/3+64us"
_WHAT = re.compile(r"stream:.+|kernel:.+|rank:[0-9]+|host(?::[0-9]+)?", re.DOTALL)
_DELAY = re.compile(rf"([0-9]+)/([0-9]+)/([^/]+)/([0-9]+){tokens.LENGTH}", re.DOTALL)
_COLLECTIVE = "nccl::"


class Place(NamedTuple):
    """An operation of a rank: the n-th (from 1) of a kernel on a stream, by the stream's number."""

    rank: int
    stream: int
    kernel: str
    occurrence: int


class Delay(NamedTuple):
    """An operation takes ``ns`` (above 0) longer, or (``late``) a collective's rank arrives later by ``ns``."""

    place: Place
    how: How
    ns: int


Deviation = Delay | Stretch | Jitter


@dataclass(frozen=True)
class Timing:
    """Deviations from the model of :class:`Costs`. Raises TokenError for deviations that a token cannot express."""

    deviations: tuple[Deviation, ...] = ()

    def __post_init__(self) -> None:
        try:
            tokens.check_counts([*self.deviations])
            for deviation in self.deviations:
                _check(deviation)
        except Wrong as wrong:
            raise tokens.error("this timing", wrong, EXAMPLE) from None

    def __str__(self) -> str:
        return ",".join([f"t{tokens.VERSION}", *map(_written, self.deviations)])

    @classmethod
    def parse(cls, text: str) -> Timing:
        """Parse a token. Raise :class:`streamrace.device.tokens.TokenError` and nothing else."""
        text = text.strip()
        try:
            parts = tokens.parts_of(text)
        except Wrong as wrong:
            raise tokens.error(shown(text), wrong, EXAMPLE) from None
        deviations: list[Deviation] = []
        for at, part in enumerate(parts, 2):
            try:
                deviations.append(_read(part))
                _check(deviations[-1])
            except Wrong as wrong:
                raise tokens.error(f"part {at} of the token, {shown(part)},", wrong, EXAMPLE) from None
        return cls(tuple(deviations))

    def costs(self, rank: int, base: Costs) -> Costs:
        """Return the costs on ``rank``, except for jitter and delays of single operations."""
        from dataclasses import replace

        slow, host = dict(base.slow), 1
        for deviation in self.deviations:
            if not isinstance(deviation, Stretch):
                continue
            kind, _, target = deviation.what.partition(":")
            if kind == "host":
                host *= deviation.factor if target in ("", str(rank)) else 1
            elif kind == "rank":
                slow["kernel:*"] = slow.get("kernel:*", 1.0) * (deviation.factor if target == str(rank) else 1)
            else:
                slow[deviation.what] = slow.get(deviation.what, 1.0) * deviation.factor
        own = {name: getattr(base, name) * host for name in ("launch_ns", "synchronize_ns", "call_ns")}
        return replace(base, slow=slow, **own)


@contextmanager
def timed(timing: Timing, *, rank: int) -> Iterator[None]:
    """Time the device of this process by ``timing`` in the ``with`` block. To be entered before the first launch.

    The occurrences of work are counted from there. At the end, a sentence on standard error names each delay whose work
    never came: the token then belongs to another program.
    """
    from streamrace.device import costs
    from streamrace.device.library import functions

    f, before = functions(), costs.current()
    if timing.deviations:
        costs.use(timing.costs(rank, before))
    delays: dict[int, Delay] = {}
    for change in timing.deviations:
        if isinstance(change, Jitter):
            f.jitter(change.percent, change.seed, rank)
        elif isinstance(change, Delay) and change.place.rank == rank:
            late, long = (change.ns, 0) if change.how == "late" else (0, change.ns)
            number = f.delay(change.place.stream, change.place.kernel.encode(), change.place.occurrence, late, long)
            delays[number] = change
    try:
        yield
    finally:
        for number, change in delays.items():
            if not f.delay_met(number):
                print(
                    f"streamrace: the timing delays {_written(change)}, but the program launched no such work",
                    file=sys.stderr,
                )
        if timing.deviations:
            costs.use(before)
            f.deviate_never()


def _check(deviation: Deviation) -> None:
    if not isinstance(deviation, Delay):
        tokens.check_common(deviation)
        if isinstance(deviation, Stretch) and not _WHAT.fullmatch(deviation.what):
            raise Wrong("stretches none of stream:3, kernel:aten::mm, rank:1, host and host:1")
        return
    place, how, ns = deviation
    within("a delay", ns, 1, tokens.MOST_NS, "ns")
    within("a rank", place.rank, 0, tokens.MOST_COUNT)
    within("a stream", place.stream, 0, tokens.MOST_COUNT)
    within("an occurrence", place.occurrence, 1, tokens.MOST_COUNT)
    if how == "late" and not place.kernel.startswith(_COLLECTIVE):
        raise Wrong(f"lets a kernel start later, as only a collective ({_COLLECTIVE}...) can: let it take longer (+)")


def _written(deviation: Deviation) -> str:
    if not isinstance(deviation, Delay):
        return tokens.written_common(deviation)
    (rank, stream, kernel, occurrence), how, ns = deviation
    return f"{rank}/{stream}/{encoded(kernel)}/{occurrence}{tokens.written_length(how, ns)}"


def _read(part: str) -> Deviation:
    if (common := tokens.read_common(part)) is not None:
        return common
    if match := _DELAY.fullmatch(part):
        rank, stream, kernel, occurrence, sign, count, unit = match.groups()
        place = Place(number(rank), number(stream), decoded(kernel), number(occurrence))
        return Delay(place, *tokens.read_length(sign, count, unit))
    if re.fullmatch(r"[a-z0-9-]+", part):
        raise Wrong("names a scenario: this token is for 'streamrace replay'")
    raise Wrong("is no deviation (x4:stream:3, jitter:20:7, or rank/stream/kernel/occurrence and +64us or @+64us)")


__all__ = ["EXAMPLE", "Delay", "Deviation", "Jitter", "Place", "Stretch", "Timing", "timed"]
