"""Times, commands, and what a clean verdict claims, in words that are the same in all reports."""

from __future__ import annotations

import math
import os
import shlex
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path


def plain_text(text: str) -> str:
    """``text`` with half characters as their codes, as files have it (:mod:`streamrace.trace.untrusted`)."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def duration(ns: int) -> str:
    for unit, size in (("s", 10**9), ("ms", 10**6), ("us", 10**3)):
        if ns >= size:
            return f"{ns / size:.4g} {unit}"
    return f"{ns} ns"


def closeness(slack_ns: int) -> str:
    """How close the two accesses of a race came; below zero: in the wrong order."""
    if slack_ns < 0:
        return f"reversed by up to {duration(-slack_ns)}"
    return f"closest: {duration(slack_ns)} apart"


def slack(microseconds: float) -> str:
    """The same of the closest pair, in short; empty where none is known."""
    if not math.isfinite(microseconds):
        return ""
    text = duration(round(abs(microseconds) * 1000))
    return f"reversed by {text}" if microseconds < 0 else f"{text} apart"


def clean(claim: str, unexercised: Sequence[str]) -> str:
    """A clean verdict's sentence, which never claims what did not happen.

    ``claim``: without a full stop; ``unexercised``: what was on and never happened.
    """
    if unexercised:
        return f"Clean as far as it went: {claim}, but not all that it has was exercised."
    return f"Clean: {claim}."


def not_exercised(sentences: Sequence[str]) -> str:
    """What stands behind such a verdict where nothing else lists it."""
    return f"Not exercised, so nothing is known of it: {'; '.join(sentences)}."


def more(rows: int, file: str) -> str:
    """What stands below a table that was cut; nothing where it is whole."""
    return f"And {rows:,} more: see {file}." if rows > 0 else ""


def differing(value: float, other: float) -> tuple[str, str]:
    """Two numbers in so many digits that they can be told apart, and at least six."""
    for digits in range(6, 17):
        texts = f"{value:.{digits}g}", f"{other:.{digits}g}"
        if texts[0] != texts[1] or value == other:
            return texts
    return repr(value), repr(other)


def ways_of(outcomes: int) -> str:
    """In how many ways training went wrong."""
    return f"{outcomes:,} way{'' if outcomes == 1 else 's'}"


def reversal(token: str) -> str:
    """What the timing of a race's witness is. Of the deviations that a token may have none has a = in it."""
    if token and all("=" in part for part in token.split(",")[2:]):
        return "as recorded, the two accesses come the other way round already"
    return "the two accesses the other way round"


def replays(token: str) -> str:
    """The command that executes a timing again, as a page has it: for the environment's own shell."""
    return f"streamrace replay {token}"


def reports_on(folder: Path) -> str:
    """The command that makes a page of a run's folder."""
    return f"streamrace report {shlex.quote(str(folder))}"


def typed(command: str) -> str:
    """``command`` as it runs in the shell in which it is printed.

    A command that begins with ``streamrace`` or ``python`` is one of this environment. Its bare name runs only where
    the environment is activated. ``make`` does not do that, and then the path from here stands for the name.
    """
    name, _, rest = command.partition(" ")
    return f"{_here(name)} {rest}" if name in ("streamrace", "python") else command


def _here(name: str) -> str:
    python = Path(sys.executable)  # not resolved: an environment's is a link to the one that made it
    ours = python.with_name(name)
    if name != "python" and not ours.exists():  # the package is in the import path, and was not installed
        return f"{_here('python')} -m {name}"
    found = shutil.which(name)
    if found and Path(found).parent.resolve() == python.parent.resolve():
        return name
    below = os.path.relpath(ours)
    return shlex.quote(str(ours) if below.startswith(os.pardir) else below)
