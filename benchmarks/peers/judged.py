"""Says what a test did: its result, and the first reason of the list that fits a failure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum

from benchmarks.peers.running import Result
from benchmarks.peers.suites import Build, List, Reason


class Said(StrEnum):
    """The result of a peer's test."""

    PASSED = "passed"
    SKIPPED = "skipped by the test"
    REFUSED = "refused by name"
    EXPLAINED = "does not pass"
    FAILED = "failed"


@dataclass(frozen=True)
class Judged:
    """A result, why it is none that passes, and the list's ``reason`` if it has one."""

    said: Said
    why: str = ""
    reason: Reason | None = None


def judged(result: Result, listed: List, build: Build = "simulated") -> Judged:
    """Judge a result on a build. What the simulated GPU refuses by name needs no reason."""
    if result.said == "passed":
        return Judged(Said.PASSED)
    if result.said == "skipped":
        return Judged(Said.SKIPPED, result.why.removeprefix("Skipped: "))
    if refused := re.search(r"streamrace: (.+? cannot be simulated)", result.why):
        return Judged(Said.REFUSED, refused[1])
    reason = next((one for one in listed.reason if one.of(result.test, result.why, build)), None)
    return Judged(Said.EXPLAINED, reason.why, reason) if reason else Judged(Said.FAILED, result.why)
