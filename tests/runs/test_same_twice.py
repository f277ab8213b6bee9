"""The same command twice gives the same bits, trace included."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from streamrace.reports.data.findings import Findings

Run = Callable[..., Findings]

# Races, and a timing that moves everything.
MOVED: dict[str, Any] = {
    "fix": "none",
    "steps": 2,
    "accumulation": 1,
    "ranks": 2,
    "nodes": 1,
    "jitter": 0.5,
    "slow": {"rank:1": 2},
}


def fingerprint(folder: Path) -> dict[str, str]:
    """Everything a run leaves behind, but for what ranks print (DeepSpeed's lines carry the time of day)."""
    files = [path for path in sorted(folder.rglob("*")) if path.is_file() and "logs" not in path.parts]
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def test_findings_tables_and_traces_are_equal(
    run: Run, shared_run: Callable[..., tuple[Findings, Path]], tmp_path: Path
) -> None:
    _, folder = shared_run(**MOVED)
    run(folder=tmp_path / "second", **MOVED)
    first, second = fingerprint(folder), fingerprint(tmp_path / "second")
    assert {"findings.json", "metrics.csv", "parameters.csv", "scenario.json", "trace/rank1.trace"} <= set(first)
    assert first == second


def test_another_timing_gives_another_trace(run: Run, tmp_path: Path) -> None:
    """The test above would see a difference."""
    run(folder=tmp_path / "first", steps=1, ranks=2, nodes=1, jitter=0.5, timing_seed=1)
    run(folder=tmp_path / "second", steps=1, ranks=2, nodes=1, jitter=0.5, timing_seed=2)
    first, second = fingerprint(tmp_path / "first"), fingerprint(tmp_path / "second")
    assert first["trace/rank0.trace"] != second["trace/rank0.trace"]
    assert first["metrics.csv"] == second["metrics.csv"]
