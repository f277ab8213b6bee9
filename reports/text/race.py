"""Describes races, their accesses and their witnesses in sentences: reports lay out what stands here, and add nothing.

What floors below say of an access stands in :mod:`streamrace.detectors.wording`. Names in the sentences are untrusted:
whoever shows them escapes them.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from streamrace.detectors.confidence.waits import WaitSite
from streamrace.detectors.missing_waits import Where, waiting
from streamrace.detectors.order.races import Race, Side, describe, site
from streamrace.detectors.streams import stream_named
from streamrace.detectors.witness import Witness
from streamrace.reports.text import closeness, replays, timing
from streamrace.trace import wording
from streamrace.trace.records import HOST_STREAM

_LONGEST = 240  # characters of an access
_RANKS = 16  # ranks that are listed
_DOES = {"read": "reads", "write": "writes", "free": "frees"}
_DOING = {"read": "reading", "write": "writing", "free": "freeing"}
NOWHERE = "no place is known: it is not a call of the program's"


def access(side: Side) -> str:
    """Return an access with its place and stream: "write by copy_ (train.py:12 step) on stream 7"."""
    return wording.cut(str(side), _LONGEST)


def pair(race: Race) -> str:
    """Return the race's two accesses, the one that the host issued first first."""
    return f"{access(race.first)} and {access(race.second)}"


def answer(race: Race, own: Collection[str]) -> str:
    """Return what goes wrong in one sentence, by lines of the program. ``own``: the files that are the program's."""
    first, second = _place(race.first, own), _place(race.second, own)
    on, waits = stream_named(race.first.stream), stream_named(waiting(race.second))
    doing = _DOING[race.first.access]
    memory = wording.few(race.memory, 1) or "memory"
    if race.kind == "freed":
        return f"{first} may still be {doing} {memory} on {on} when it is freed, and its next owner may overwrite it."
    does = _DOES[race.second.access]
    if race.kind == "reused":
        return (
            f"{first} may still be {doing} {memory} on {on} when it is freed and handed out again, and {second} {does} "
            f"it on {stream_named(race.second.stream)}."
        )
    where = "" if race.second.stream == HOST_STREAM else f" on {stream_named(race.second.stream)}"
    during = f"while {first} may still be {doing} it on {on}"
    return f"{second} {does} {memory}{where} {during}: {waits} does not wait for that."


def _place(side: Side, own: Collection[str]) -> str:
    """Return the program's own line, and the library's in parentheses; the innermost line if none is the program's."""
    inner = site(side.stack)
    if inner is None:
        return f"the {wording.operator(side.kernel)} that no line is known of"
    mine = next((frame for frame in side.stack if frame.file in own), inner)
    line = wording.cut(wording.line(mine.file, mine.line), _LONGEST)
    return line if mine == inner else f"{line} (in {wording.cut(wording.frame(inner), _LONGEST)})"


def unordered(race: Race) -> str:
    """Return two sentences: the accesses that nothing orders, and the wait that would."""
    return f"Nothing orders the {race.first} and the {race.second}. {missing(race)}."


def held(race: Race, sites: Sequence[WaitSite]) -> str:
    """Return the sentence about a pair that only the waits at ``sites`` order, which are there for another reason."""
    return (
        f"Only {wording.every(sites)} orders two accesses, and is there for another reason: "
        f"the {race.first} and the {race.second}."
    )


def count(races: int, waits: int) -> str:
    """Return how many races there are, and how many waits are missing if these are fewer."""
    number = "A race" if races == 1 else wording.count(races, "race")
    return number if waits == races else f"{number}, {'one missing wait' if waits == 1 else f'{waits} missing waits'}"


def missing(race: Race) -> str:
    """Return the missing wait, a sentence without a full stop."""
    return f"Missing: {race.missing_wait}"


def missing_for_all(where: Where, races: Sequence[Race]) -> str:
    """Return the wait that orders all ``races``, a sentence without a full stop; its place is one of the first's."""
    first = races[0]
    if len(races) == 1 or where == "behind" or first.second.allocated is not None or first.kind == "freed":
        return missing(first)
    streams = f"{stream_named(waiting(first.second))} never waits for {stream_named(first.first.stream)}"
    return f"Missing: {streams} before {describe(first.second.kernel, first.second.stack)}"


def folded(numbers: Sequence[int]) -> str:
    """Return which further races the same wait orders, a sentence without a full stop."""
    subject = f"Race {numbers[0]}" if len(numbers) == 1 else f"Races {wording.every(numbers)}"
    return f"{subject} {wording.plural_of(len(numbers), 'lacks', 'lack')} the same wait"


def cause(race: Race, parameter: str) -> str:
    """Return the missing wait, and the memory that both use: ``parameter`` if that is part of it, and how much more."""
    if not race.names:
        return race.missing_wait
    kind, name = next((entry for entry in race.names if entry.name == parameter), race.names[0])
    part = f"the {kind} partition" if kind in ("primary", "secondary") else kind
    more = f" and {len(race.names) - 1} more" if len(race.names) > 1 else ""
    return f"{race.missing_wait}; both use {part} of {name}{more}"


def occurs(race: Race) -> str:
    """Return how often a race occurred, and on which ranks: "3 times on rank 0, 1"."""
    return wording.times(race.occurrences) + (f" on rank {wording.few(race.ranks, _RANKS)}" if race.ranks else "")


def often(race: Race) -> str:
    """Return :func:`occurs`, how often this timing shows the race, and how close the two came; without a full stop.

    Of a real GPU neither is known.
    """
    if not race.is_timed:
        return occurs(race)
    return f"{occurs(race)}; this timing shows {race.manifested:,} of them, {closeness(race.slack_ns)}"


def of_race(race: Race, *, most: int = 4, whole: str = "", missing_wait: str = "") -> list[str]:
    """Return all sentences about a race, which each report shows: the missing wait comes first.

    ``most``: names of the memory that both touch; ``whole``: the file that has all of them;
    ``missing_wait``: the sentence to use for it.
    """
    sentences = [f"{missing_wait or missing(race)}.", f"{often(race)}."]
    if race.memory:
        left = f" (see {whole})" if whole and len(race.memory) > most else ""
        sentences.append(f"Memory: {wording.few(race.memory, most)}{left}.")
    return sentences


def witness(number: int, result: Witness) -> tuple[str, str]:
    """Return the result of race ``number`` in its witness, without a full stop, and the command that runs it again."""
    if result.verdict:
        return f"Race {number} is {_within(result.verdict)}: {result.says}", result.command
    if result.reason:
        return f"Race {number} has no witness: {result.reason}", ""
    return f"Race {number} shows {timing(result.token)}", result.command or replays(result.token)


def harm(verdict: str, says: str) -> str:
    """Return the effect of a race as a sentence. ``verdict``: harmful, benign or not confirmed; ``says``: evidence."""
    if verdict == "not confirmed":
        return f"Whether it does harm is not known: {says}."
    return f"{wording.capital(_within(verdict))}: {says}."


def _within(verdict: str) -> str:
    """Return the effect with its scope: what does no harm in this run may do it in another program or size."""
    return "benign in this run" if verdict == "benign" else verdict
