"""Decides whether any value depends on memory that nobody wrote: runs the program again with other bytes in it.

In one run this memory holds numbers, in another NaN (for integers -1), and nothing else is different. A value that the
program then reads differently depends on the memory: Memcheck's rule, applied to values (of the host, which also
decides on branches; of a collective; of a parameter after its optimizer's step). Copies, padding and masked elements
make no difference, and are no finding. Padding is distinguished by the fraction that differs; where the program writes
part of a place's memory, other bytes copied unchanged to the host or another rank count as padding. A third run, with
numbers again, shows that the program repeats itself. If several places allocate such memory, each is tried alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from streamrace.detectors.base import Uninitialised, UnwrittenRead
from streamrace.device.value_checksums import PARAMETER, differing
from streamrace.fuzz.live.run_record import Recorded, ValueRead
from streamrace.fuzz.live.runs import LiveOutcome, Poisoned
from streamrace.trace import wording
from streamrace.trace.records import HOST_STREAM

_PADDED = 0.5  # fraction of a parameter or a copy that may be padding
_SENT = 0.99  # of the input of a collective: almost all


class Filled(Protocol):
    """Runs the program, always in the same timing: see :meth:`streamrace.fuzz.live.runs.Runner.run`."""

    def __call__(self, unwritten: Poisoned) -> LiveOutcome: ...


class Reached(NamedTuple):
    """A difference between two runs. ``kind``: host, collective, parameter, end; ``where``: the work that reads it."""

    kind: str
    where: str


class Confirmed(NamedTuple):
    """The proven findings; ``notes``: open questions, as sentences without full stops."""

    found: tuple[Uninitialised, ...] = ()
    notes: tuple[str, ...] = ()


def confirm(reads: Sequence[UnwrittenRead], run: Filled, limit: int) -> Confirmed:
    """Find the values that depend on these reads, of which up to ``limit`` are tried one by one.

    Two runs if nothing depends on them; else one more, and one for each read that is tried, if there are several.
    Raises the errors of ``run``.
    """
    if not reads:
        return Confirmed()
    copies = all(read.untouched for read in reads)
    numbers, nan = run(Poisoned((), copies)), run(Poisoned(None, copies))
    use = reached(numbers, nan)
    if use is None:
        broken = numbers.status != 0 or not numbers.run
        return Confirmed(notes=(unknown(reads, "it does not end well with other bytes there"),) if broken else ())
    if numbers.status is None or reached(numbers, run(Poisoned((), copies))) is not None:
        return Confirmed(notes=(unknown(reads, "two runs of the program differ by themselves"),))
    if len(reads) == 1:
        return Confirmed((_proven(reads[0], use),))
    trials = [(read, reached(numbers, run(Poisoned(read.blocks, copies)))) for read in reads[:limit]]
    notes = (unknown(reads[limit:], f"only {limit} places are tried"),) if len(reads) > limit else ()
    return Confirmed(tuple(_proven(read, use) for read, use in trials if use is not None), notes)


def unknown(reads: Sequence[UnwrittenRead], why: str) -> str:
    """Return a sentence, without a full stop, that it is unknown whether anything depends on these reads."""
    others = f" (and so in {wording.count(more, 'more place')})" if (more := len(reads) - 1) else ""
    return f"{reads[0].sentence()}{others}; whether any value depends on that is not known: {why}"


def reached(outcome: LiveOutcome, other: LiveOutcome) -> Reached | None:
    """Return the first difference that the program sees: in the host's reads, then a collective, then a parameter."""
    uses: list[Reached] = []
    for rank in sorted(outcome.run):
        if rank in other.run:
            on = f" on rank {rank}" if len(outcome.run) > 1 else ""
            uses += [use._replace(where=use.where + on) for use in _by_rank(outcome.run[rank], other.run[rank])]
    if uses:
        return min(uses, key=lambda use: ("host", "collective", "parameter").index(use.kind))
    ends = other.ends(outcome)
    return Reached("end", ends) if ends else None


def _by_rank(recorded: Recorded, other: Recorded) -> list[Reached]:
    uses = []
    for before, now in zip(recorded.reads, other.reads, strict=False):
        if before.nbytes != now.nbytes or not _same(recorded, before, now.checksum):
            uses.append(Reached("host", f"the host, by {recorded.where(before.op)}"))
            break
    for look, again in zip(recorded.looked, other.looked, strict=False):
        if look[:3] != again[:3] or look.checksum is None or again.checksum is None:
            break
        differ = differing(look.checksum, again.checksum)
        if differ > (_PADDED if look.kind == PARAMETER else _SENT):
            uses.append(Reached(look.kind, f"{'a collective, ' * (look.kind == 'collective')}{look.name}"))
            break
    return uses


def _same(rank: Recorded, read: ValueRead, checksum: int) -> bool:
    """Check a read for equality; half of a plain copy to the host, or of the host's memory, may differ as padding."""
    place = rank.works[read.op].place
    if place.kernel == "cudaMemcpyAsync DtoH" or rank.streams.get(place.stream) == HOST_STREAM:
        return differing(read.checksum, checksum) <= _PADDED
    return read.checksum == checksum


def _proven(read: UnwrittenRead, use: Reached) -> Uninitialised:
    return Uninitialised(**vars(read), reached=use.kind, where=use.where)
