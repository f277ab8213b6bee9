"""Formats the report on a test: its races, their effects, and a timing that goes wrong without a race."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from streamrace.detectors import Hang, MayHang, Race, Uninitialised
from streamrace.fuzz.testing.bodies import Failure
from streamrace.fuzz.testing.lines import race_lines

Word = Literal["harmful", "benign", "not judged"]

BLIND = "the test watches no value and reads none: give it some by streamrace.watch(name, tensor), or return tensors"
_NO_RACE = (
    "No race explains it. Either the program itself goes by the time, as by query(), or an access was not seen, as one "
    "that no operator's schema has: then it is not known that all work is ordered."
)


class BodyFailed(Exception):
    """The body itself failed. ``section``: additional text, with a heading."""

    def __init__(self, failure: Failure, heading: str, lines: Sequence[str]) -> None:
        self.failure = failure
        self.section = (heading, "\n".join(lines))


class Shown(NamedTuple):
    """A timing that was run. ``words``: how it differs from the plain timing; ``wrong``: its results, a line each."""

    token: str
    words: Sequence[str]
    wrong: Sequence[str]


@dataclass(frozen=True)
class JudgedTest:
    """A race and the effect of its witness. ``reason``: why there is no witness."""

    race: Race
    word: Word
    witness: Shown | None
    reason: str = ""


def report(
    races: Sequence[JudgedTest],
    failing: Shown | None,
    command: Callable[[str], str],
    unwritten: Sequence[Uninitialised] = (),
    orders: Sequence[MayHang] = (),
) -> list[str]:
    """Return the lines of a failing test, whose values depend on timing ``failing`` or on memory ``unwritten``, or
    whose collectives have ``orders`` that may hang.

    ``command``: returns the command for a token.
    """
    harmful = next((result for result in races if result.word == "harmful"), None)
    if harmful is not None:
        lines = [f"harmful race: {harmful.race.missing_wait}"]
    elif failing is not None:
        lines = [f"values depend on timing: {failing.wrong[0]}"]
    elif races:
        lines = [f"{races[0].word} race: {races[0].race.missing_wait}"]
    elif unwritten:
        lines = [f"uninitialised: memory that nobody wrote reaches {unwritten[0].where}"]
    else:
        lines = ["may hang: ranks issue their collectives in different order"]
    for number, result in enumerate(sorted(races, key=lambda result: result.word != "harmful"), 1):
        lines += ["", f"Race {number} of {len(races)}: {result.race.kind}, {result.word}", *race_lines(result.race)]
        if result.reason:
            lines.append(f"  No verdict: {result.reason}")
        if result.witness is not None:
            lines += indented("Witness, in which the second comes before the first:", result.witness.words)
            lines += indented("Then:", result.witness.wrong or ["every value is the same"])
            lines += _rerun_lines(result.witness.token, command)
    if failing is not None:
        lines += ["", "A timing in which it goes wrong", *indented("Timing:", failing.words)]
        lines += [*indented("Then:", failing.wrong), *_rerun_lines(failing.token, command)]
        lines += [] if races else [f"  {_NO_RACE}"]
    for read in unwritten:
        lines += ["", f"Uninitialised: {read.sentence()}."]
    for order in orders:
        lines += ["", f"May hang: {order.sentence()}."]
    if harmful is None and failing is None and races and all(result.word == "benign" for result in races):
        lines += ["", "No value depends on it. To let such races pass: @pytest.mark.stream_race(benign='allow')"]
    return lines


def hang_lines(hang: Hang) -> list[str]:
    """Return what does not fit, and where each rank stands."""
    return [f"{hang.sentence()}.", *(f"  {clause}." for clause in hang.details())]


def races_so_far(races: Sequence[Race]) -> list[str]:
    """Return all races, with a blank line between two."""
    lines: list[str] = []
    for number, race in enumerate(races, 1):
        lines += [*[""] * bool(lines), f"Race {number} of {len(races)}: {race.kind}", *race_lines(race)]
    return lines


def in_token(words: Sequence[str], wrong: Sequence[str]) -> str:
    """Return the report on a test whose asserts hold but whose values differ in a token's timing."""
    return "\n".join([f"values depend on timing: {wrong[0]}", *indented("Timing:", words), *indented("Then:", wrong)])


def indented(heading: str, lines: Sequence[str]) -> list[str]:
    return [f"  {heading}", *(f"    {line}" for line in lines)]


def _rerun_lines(token: str, command: Callable[[str], str]) -> list[str]:
    return [f"  Token: {token}", f"  Again: {command(token)}"]
