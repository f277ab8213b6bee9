"""Describes races, their accesses and their witnesses in sentences: reports lay out what stands here, and add nothing.

What floors below say of an access stands in :mod:`streamrace.detectors.wording`. Names in the sentences are untrusted:
whoever shows them escapes them.
"""

from __future__ import annotations

from collections.abc import Sequence

from streamrace.detectors.confidence.waits import WaitSite
from streamrace.detectors.order.races import Race, Side
from streamrace.detectors.witness import Witness
from streamrace.reports.text import closeness, replays, timing
from streamrace.trace import wording

_LONGEST = 240  # characters of an access
_RANKS = 16  # ranks that are listed
NOWHERE = "no place is known: it is not a call of the program's"


def access(side: Side) -> str:
    """Return an access with its place and stream: "write by copy_ (train.py:12 step) on stream 7"."""
    return wording.cut(str(side), _LONGEST)


def pair(race: Race) -> str:
    """Return the race's two accesses, the one that the host issued first first."""
    return f"{access(race.first)} and {access(race.second)}"


def unordered(race: Race) -> str:
    """Return two sentences: the accesses that nothing orders, and the wait that would."""
    return f"Nothing orders the {race.first} and the {race.second}. {missing(race)}."


def held(race: Race, sites: Sequence[WaitSite]) -> str:
    """Return the sentence about a pair that only the waits at ``sites`` order, which are there for another reason."""
    return (
        f"Only {wording.every(sites)} orders two accesses, and is there for another reason: "
        f"the {race.first} and the {race.second}."
    )


def missing(race: Race) -> str:
    """Return the missing wait, a sentence without a full stop."""
    return f"Missing: {race.missing_wait}"


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
    """Return :func:`occurs`, how often this timing shows the race, and how close the two came; without a full stop."""
    return f"{occurs(race)}; this timing shows {race.manifested:,} of them, {closeness(race.slack_ns)}"


def of_race(race: Race, *, most: int = 4, whole: str = "") -> list[str]:
    """Return all sentences about a race, which each report shows: the missing wait comes first.

    ``most``: names of the memory that both touch; ``whole``: the file that has all of them.
    """
    sentences = [f"{missing(race)}.", f"{often(race)}."]
    if race.memory:
        left = f" (see {whole})" if whole and len(race.memory) > most else ""
        sentences.append(f"Memory: {wording.few(race.memory, most)}{left}.")
    return sentences


def witness(number: int, result: Witness) -> tuple[str, str]:
    """Return the result of race ``number`` in its witness, without a full stop, and the command that runs it again."""
    if result.verdict:
        return f"Race {number} is {result.verdict}: {result.says}", result.command
    if result.reason:
        return f"Race {number} has no witness: {result.reason}", ""
    return f"Race {number} shows {timing(result.token)}", result.command or replays(result.token)


def harm(verdict: str, says: str) -> str:
    """Return the effect of a race as a sentence. ``verdict``: harmful, benign or not confirmed; ``says``: evidence."""
    if verdict == "not confirmed":
        return f"Whether it does harm is not known: {says}."
    return f"{verdict.capitalize()}: {says}."
