"""Describes a race in sentences for a person: what happens, what orders it, when it shows.

Each sentence is complete. Names in the sentences are untrusted: whoever shows them escapes them, as everywhere.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import NamedTuple

from streamrace.detectors.confidence.chains import Link
from streamrace.detectors.confidence.order_context import Around, Behind, Handed, TracedWork
from streamrace.detectors.order.races import Occurrence, Race, Side, site
from streamrace.detectors.streams import stream_named
from streamrace.detectors.witness import Witness
from streamrace.reports.text.race import harm
from streamrace.trace import wording
from streamrace.trace.records import HOST_STREAM, Frame
from streamrace.trace.wording import duration

_LINKS = 5  # of a chain
_NAMES = 3  # of memory
_LONGEST = 100  # characters of a name
_OWN = ("the host waits for the host", f"the host waits for stream '{HOST_STREAM}'")  # follow each host access
_NUMBERED = re.compile(r"stream 'stream (\d+)'")  # names in files of earlier versions


class Section(NamedTuple):
    """Sentences under a heading."""

    title: str
    sentences: tuple[str, ...]


@dataclass(frozen=True)
class RaceTelling:
    """A race, and the occurrence ``pair`` of it that is described. ``script``: the name of the program's own file.

    ``around``: the occurrence's order; None if unknown, for the reason ``why_not``, a sentence. ``held_by``: the
    incidental wait that orders a fragile pair, and ``held``: its chain. ``thinned``: the traces are kept in part.
    """

    race: Race
    pair: Occurrence | None
    around: Around | None
    why_not: str = ""
    script: str = ""
    held_by: str = ""
    held: tuple[Link, ...] = ()
    thinned: bool = False

    @property
    def first(self) -> str:
        """The name of the first-issued access from its second mention on."""
        race = self.race
        if race.kind == "reused":
            return f"the old owner's {race.first.access}"
        return "the first write" if race.first.access == race.second.access else f"the {race.first.access}"

    @property
    def second(self) -> str:
        """The name of the second-issued access from its second mention on."""
        race = self.race
        if race.kind == "freed":
            return "the next owner's write"
        if race.kind == "reused":
            return f"the new owner's {race.second.access}"
        if race.second.stream == HOST_STREAM:
            return f"the host's {race.second.access}"
        return "the second write" if race.first.access == race.second.access else f"the {race.second.access}"

    def headline(self) -> str:
        """Return the race in one sentence."""
        race = self.race
        only = f"; only {self.held_by} makes it wait" if self.held_by else ""
        first, second = named(race.first.stream), wording.capital(named(race.second.stream))
        does = _does(race.first)
        if race.kind == "freed":
            return f"Memory that {first} still {does} is freed, and may be handed out at once{only}."
        if race.kind == "reused":
            return (
                f"Memory that {first} still {does} is handed out again, and {named(race.second.stream)} "
                f"{_does(race.second)} it without waiting{only}."
            )
        pronoun = "what" if race.kind == "write-read" else "over what" if race.kind == "write-write" else "what"
        still = " still" if race.kind == "read-write" else ""
        end = only or ", and does not wait for it"
        return f"{second} {_does(race.second)} {pronoun} {first}{still} {does}{end}."

    # -- what happens ------------------------------------------------------------------------------

    def happens(self) -> Section:
        """Describe both accesses, in the order in which the host issues them."""
        race, handed = self.race, self.around.handed if self.around else None
        rank = f"rank {self.pair.rank}" if self.pair else f"rank {race.ranks[0]}" if race.ranks else "the program"
        lines = [f"{wording.capital(rank)} {self._issued(race.first)}, which {_does(race.first)} {self._memory()}."]
        if race.kind == "freed":
            lines.append(self._let_go(handed))
            lines.append("From then on its next owner may write it.")
        elif race.kind == "reused":
            lines.append(self._let_go(handed))
            got = site(race.second.allocated or ())
            where = f", to the allocation at {_place(got)}," if got else ""
            lines.append(f"The allocator hands the memory out again{where} without waiting for that access.")
            lines.append(f"The new owner {self._issued(race.second)}, which {_does(race.second)} the same bytes.")
        elif race.second.stream == HOST_STREAM:
            lines.append(
                f"Then the host itself {_does(race.second)} the same memory, by {self._named(race.second)}, without "
                "waiting for the device."
            )
        else:
            lines.append(f"Then it {self._issued(race.second)}, which {_does(race.second)} the same memory.")
        if race.second.issuer and race.second.issuer != race.second.stream:
            lines.append(
                f"{wording.capital(named(race.second.stream))} is ordered after {named(race.second.issuer)}, which "
                "was the current stream."
            )
        if race.occurrences > 1:
            ranks = f"{wording.plural_of(len(race.ranks), 'rank')} {', '.join(map(str, race.ranks))}"
            lines.append(f"This happens {race.occurrences} times, on {ranks}; one of them is described{self._when()}.")
        return Section("What happens", tuple(lines))

    def _issued(self, side: Side) -> str:
        """Return the clause that issues an access: ``issues `add` (train.py:6 step) on stream 'default'``."""
        if side.stream == HOST_STREAM:
            return f"uses memory on the host itself, in {self._named(side)}"
        prefix = "the collective " if side.kernel.startswith("nccl::") else ""
        return f"issues {prefix}{self._named(side)} on {named(side.stream)}"

    def _named(self, side: Side) -> str:
        frame = site(side.stack)
        if frame is None:
            return f"`{short(side.kernel)}` (no line is known: it is no call of the program's)"
        own = next((call for call in side.stack if PurePath(call.file).name == self.script), None)
        if own is None and PurePath(frame.file).name == "contextlib.py":  # a wrapper's line, which explains nothing
            own = next((call for call in side.stack if call.file != frame.file), None)
        called = f", called at {_line(own)}" if own is not None and own.file != frame.file else ""
        return f"`{short(side.kernel)}` ({_place(frame)}{called})"

    def _memory(self) -> str:
        if names := self.race.memory:
            return wording.few(map(_cut, names), _NAMES)
        if self.pair is None:
            return "memory"
        count = self.pair.hi - self.pair.lo
        pinned = " of pinned memory" if self.race.second.stream == HOST_STREAM else ""
        return f"{wording.count(count, 'byte')}{pinned}"

    def _let_go(self, handed: Handed | None) -> str:
        before = handed.before if handed else None
        when = ""
        if before is not None and self.pair is not None and before.op == self.pair.first.op:
            when = " at once"
        elif before is not None:
            when = f", after {self._work(before)},"
        text = f"Then{when} the program frees that memory."
        if handed is None:
            return text
        owner = f"{named(handed.owner)}, on which it was allocated" if handed.owner else "the stream that had it"
        recorded = ", ".join(named(stream) for stream in handed.recorded)
        more = f" and {recorded}, which record_stream names" if recorded else "; no record_stream names another stream"
        return f"{text} The allocator follows {owner}{more}."

    def _when(self) -> str:
        access = self.pair.first if self.pair else None
        if access is None or not access.step:
            return ""
        return f", of step {access.step}, micro-batch {access.micro_batch}, {access.phase}"

    # -- what orders it ----------------------------------------------------------------------------

    def order(self) -> Section:
        """Describe the predecessors of each access, the nearest order between the two, and the missing edge."""
        lines = []
        if self.held_by:
            chain = f": {_because(self.held)}" if self.held else ""
            lines.append(f"As the program stands, the two are ordered, but by chance{chain}.")
            lines.append(
                "That wait is there for another reason: whoever removes it does not see what it orders. What follows "
                "describes the program without it."
            )
        elif self.race.second.stream == HOST_STREAM:
            lines.append("The host runs ahead of the device, unless it waits for it.")
        else:
            lines.append("Two streams run side by side, unless one waits for the other.")
        around = self.around
        if around is None:
            lines.append(self.why_not)
        else:
            lines += self._comes_behind(self.first, self.race.first, around.first)
            if self.race.second.access != "free":
                lines += self._comes_behind(self.second, self.race.second, around.second)
                lines += self._nearest(around)
                lines.append(self._late(around.late))
        lines.append(f"Missing: {self.missing()}.")
        return Section("What orders the two, and what does not", tuple(lines))

    def _comes_behind(self, who: str, side: Side, behind: Sequence[Behind]) -> list[str]:
        own = [earlier for earlier in behind if not earlier.links]
        waited = [earlier for earlier in behind if earlier.links]
        host = side.stream == HOST_STREAM
        text = wording.capital(who)
        if own:
            where = ", an earlier access of the host" if host else " on the same stream"
            text += f" runs after {self._work(own[0].work)}{where}"
        else:
            text += " is the host's first access" if host else f" is the first work of {named(side.stream)}"
        if not waited:
            nobody = "the host has waited for no stream" if host else "it waits for no other stream"
            return [f"{text}; {nobody}."]
        lines = [f"{text}."]
        for earlier in waited:
            if earlier.work.stream == HOST_STREAM:
                lines.append(f"It also runs after {self._work(earlier.work)}, an access of the host itself.")
            else:
                on = self._on(earlier.work)
                lines.append(f"It also runs after {self._work(earlier.work)} on {on}: {_because(earlier.links)}.")
        return lines

    def _nearest(self, around: Around) -> list[str]:
        stream, second, host = named(self.race.first.stream), self.second, self.race.second.stream == HOST_STREAM
        nearest, none = (
            around.known,
            [f"{wording.capital(second)} runs after nothing on {stream}: no wait leads there."],
        )
        if host or not any(earlier.links for earlier in around.second):
            none = []  # already stated
        if around.common is None:
            return ["No work comes before both.", *none]
        of_first, of_second = around.common
        work = of_first.work
        where = "" if work.stream == HOST_STREAM else f" on {self._on(work)}"
        text = f"So the last work before both is {self._work(work)}{where}"
        for who, way, known_by in ((self.first, of_first, around.first), (second, of_second, around.second)):
            if not any(earlier.work == work for earlier in known_by):  # otherwise the reason was already stated
                text += f"; {who} {_way(way)}"
        lines = [f"{text}."]
        if nearest is None:
            return lines + none
        if nearest.work == work:
            lines.append(f"{wording.capital(self.first)} was issued later, so this does not order {second} after it.")
            return lines
        why = "" if any(earlier.work == nearest.work for earlier in around.second) else f": {_because(nearest.links)}"
        lines.append(
            f"The last work on {stream} before {second} is {self._work(nearest.work)}{why}; {self.first} was issued "
            "after that."
        )
        return lines

    def _on(self, work: TracedWork) -> str:
        """Return the name of the work's stream. Streams may share a name, such as those of two equal process groups."""
        sides = zip((self.race.first, self.race.second), self.around.streams if self.around else (), strict=False)
        alike = any(side.stream == work.stream and number != work.number for side, number in sides)
        return f"another {named(work.stream)}" if alike else named(work.stream)

    def _late(self, late: Sequence[Link] | None) -> str:
        if not late and self.thinned:
            return f"In the part of the traces that is kept, nothing waits for {self.first} later, either."
        if late:
            return f"The wait for {self.first} comes too late, after {self.second}: {_because(late)}."
        if self.race.second.stream == HOST_STREAM:
            return f"The host does not wait for {self.first} later, either."
        return f"Neither {named(self.race.second.stream)} nor the host waits for {self.first} later."

    def _work(self, work: TracedWork) -> str:
        """Return the work with its place; "an earlier" one if kernel and line are those of one of the two accesses."""
        where = f" ({_line(work.frame)})" if work.frame else ""
        rank = f" of rank {work.rank}" if self.pair is not None and work.rank != self.pair.rank else ""
        alike = any(
            (short(side.kernel), site(side.stack)) == (short(work.kernel), work.frame)
            for side in (self.race.first, self.race.second)
        )
        return f"{'an earlier ' if alike else ''}`{short(work.kernel)}`{where}{rank}"

    def missing(self) -> str:
        """Return the missing edge, without a full stop."""
        first, second = self.race.first, self.race.second
        after = f"after {self.first}{_at(first)}"
        if second.access == "free" or second.allocated is not None:
            return (
                f"a record_stream for {named(first.stream)}, or a wait of {named(second.stream)} for it, {after} "
                "and before the memory is freed"
            )
        waiting = named(second.issuer or second.stream)
        return f"a wait of {waiting} for {named(first.stream)}, {after} and before {self.second}{_at(second)}"

    # -- when it shows, and what it does -----------------------------------------------------------

    def shows(self, where: str) -> Section:
        """Describe the timings in which the race shows. ``where``: its witness's, in words; empty if it has none."""
        race, lines = self.race, []
        if not race.is_timed:
            lines.append("It was recorded on a GPU, and when work ran there is not known.")
        elif self.pair is not None:
            apart = duration(abs(self.pair.slack_ns))
            if self.pair.manifested:
                lines.append(f"This run shows it: {self.second} takes effect {apart} before {self.first}.")
            elif self.held_by:
                lines.append(
                    f"In no timing, as long as that wait stays. Here {self.second} takes effect {apart} after "
                    f"{self.first}."
                )
            else:
                lines.append(
                    f"This run does not show it: {self.second} takes effect {apart} after {self.first}. Only "
                    "the timing keeps this order."
                )
        if race.occurrences > 1 and race.manifested:
            lines.append(f"In this run it shows {race.manifested} of {race.occurrences} times.")
        if where:
            lines.append(where)
        return Section("In which timing it shows", tuple(lines))

    def does(self, witness: Witness | None) -> Section:
        """Describe the effect of the race in its witness."""
        if self.held_by:
            return Section("What it does", ("Nothing, as long as that wait stays, so no other timing was tried.",))
        if witness is None:
            says = (
                "Not known: the run has no witness (it was made with --witnesses 0, or dry), so nothing shows "
                "whether the race is harmful."
            )
        elif not witness.verdict:  # of a scenario, whose values are compared with a reference
            says = (
                "In its witness the two accesses swap; the run's page says which values differ."
                if witness.token
                else f"No timing was found in which it shows: {witness.reason or 'the run does not say why'}."
            )
        else:
            says = harm(witness.verdict, witness.says)
        return Section("What it does", (says,))


def _way(earlier: Behind) -> str:
    return f"runs after it, as {_because(earlier.links)}" if earlier.links else "runs after it on that stream"


def _because(links: Sequence[Link]) -> str:
    clauses = []
    for link in links[:_LINKS]:
        place = f" ({wording.line(link.file, link.line)})" if link.file else ""
        text = (
            "the host continues after its own access" if link.what in _OWN else _NUMBERED.sub(r"stream \1", link.what)
        )
        clauses.append(f"{text}{place}")
    left = len(links) - len(clauses)
    return ", then ".join([*clauses, *([f"{left} more"] if left else [])])


def short(kernel: str) -> str:
    """Return a kernel's name without its namespace."""
    return _cut(wording.operator(kernel))


def _place(frame: Frame) -> str:
    function = _cut(frame.function.rpartition(".")[2])
    return _line(frame) if function == "<module>" else f"{_line(frame)} {function}"


def _at(side: Side) -> str:
    frame = site(side.stack)
    return f" ({_line(frame)})" if frame else ""


def _line(frame: Frame) -> str:
    return _cut(wording.line(frame.file, frame.line))


def named(name: str) -> str:
    """Return :func:`streamrace.detectors.streams.stream_named` of the name, cut to the longest length."""
    return stream_named(_cut(name))


def _cut(name: str) -> str:
    return wording.cut(name, _LONGEST)


def _does(side: Side) -> str:
    return {"read": "reads", "write": "writes"}.get(side.access, "frees")
