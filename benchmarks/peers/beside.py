"""Compares what tests did on the simulated GPU with what they did on torch's CUDA build over fake CUDA libraries."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum

import pandas as pd

from benchmarks.peers.judged import Said, judged
from benchmarks.peers.running import Result
from benchmarks.peers.suites import List


class Passes(StrEnum):
    """The builds on which a test passes."""

    BOTH = "on both"
    REAL = "only on torch's CUDA build"
    SIMULATED = "only on the simulated GPU"
    NEITHER = "on neither"
    SKIPPED = "skipped by the test"


def compare(suite: str, simulated: Iterable[Result], real: Iterable[Result], listed: List) -> list[dict[str, str]]:
    """Return a row for each test that ran on both. ``why``: of the build on which it does not pass.

    ``fault``: a difference that the list gives no reason for, or a reason that the other build refutes.
    """
    on_real = {result.test: result for result in real}
    rows = []
    for one in simulated:
        if one.test not in on_real:
            rows.append(_row(suite, one.test, Passes.SIMULATED, "", fault="it is no test of torch's CUDA build"))
            continue
        rows.append(_compared(suite, one, on_real.pop(one.test), listed))
    rows += [_row(suite, test, Passes.REAL, "", fault="it is no test of the simulated GPU") for test in on_real]
    return rows


def _compared(suite: str, simulated: Result, real: Result, listed: List) -> dict[str, str]:
    ours, theirs = judged(simulated, listed), judged(real, listed, "real")
    match ours.said, theirs.said:
        case Said.PASSED, Said.PASSED:
            return _row(suite, real.test, Passes.BOTH, "")
        case Said.SKIPPED, Said.SKIPPED:
            return _row(suite, real.test, Passes.SKIPPED, ours.why)
        case Said.PASSED, _:
            passes, other = Passes.SIMULATED, theirs
        case _, Said.PASSED:
            passes, other = Passes.REAL, ours
        case _:
            return _row(suite, real.test, Passes.NEITHER, ours.why)
    why = f"{other.said}: {other.why}" if other.said is Said.SKIPPED else other.why
    fault = why if other.said is Said.FAILED else ""
    if other.reason and other.reason.build == "both":
        fault = f"it passes {passes}, and the list has a reason for both: {other.why}"
    return _row(suite, real.test, passes, why, fault)


def _row(suite: str, test: str, passes: Passes, why: str, fault: str = "") -> dict[str, str]:
    return {"suite": suite, "test": test, "passes": str(passes), "why": why, "fault": fault}


def counts(frame: pd.DataFrame) -> pd.DataFrame:
    """Count the tests of each suite that pass on the same builds for the same reason; ``example`` is the first."""
    groups = frame.groupby(["suite", "passes", "why"], sort=False)
    return groups.agg(tests=("test", "size"), example=("test", "first")).reset_index()
