"""Describes the witness of a race: a timing that executes its two accesses in the other order."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Witness:
    """``token`` names the timing; without one, ``reason`` says why no timing is known, without a full stop.

    For a program of the user's own also the result: ``verdict`` (harmful, benign or not confirmed), ``says``, the
    evidence, a sentence without a full stop, and ``command``, which runs the program in that timing.
    """

    token: str
    reason: str
    verdict: str = ""
    says: str = ""
    command: str = ""


def judged(verdict: str, says: str, token: str = "", command: str = "") -> Witness:
    """Return the witness of a race of a user's own program; without a token, ``says`` is the reason why none exists."""
    return Witness(token, "" if token else says, verdict, says, command)
