"""The gradient norm of each step is reported beside the reference's, and nothing happens otherwise for it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from streamrace.reports import Run as Report
from streamrace.reports import load
from streamrace.reports.data.findings import Findings
from streamrace.scenarios import program
from tests.runs.test_same_twice import MOVED, fingerprint

Run = Callable[..., Findings]
Shared = Callable[..., tuple[Findings, Path]]


def beside(run: Run, folder: Path, fix: str, **options: Any) -> Report:
    run(folder=folder / fix, fix=fix, **options)
    return load(folder / fix)


def test_a_clean_run_has_the_norms_of_its_reference(run: Run, tmp_path: Path) -> None:
    steps = beside(run, tmp_path, "stream-sync", ranks=2, nodes=1, accumulation=2).steps
    last = steps["micro_batch"] == steps["micro_batch"].max()
    norms = steps.loc[last, ["step", "gradient_norm", "reference_gradient_norm"]]
    assert (norms["gradient_norm"] == norms["reference_gradient_norm"]).all() and (norms["gradient_norm"] > 0).all()
    assert norms.groupby("step")["gradient_norm"].nunique().tolist() == [1, 1, 1]  # one of all ranks together
    assert steps.loc[~last, ["gradient_norm", "reference_gradient_norm"]].isna().all(axis=None)


def test_a_step_that_the_race_spoils_shows_in_its_norm(run: Run, tmp_path: Path) -> None:
    report = beside(run, tmp_path, "none", accumulation=1, ranks=2, nodes=1)
    whole = report.steps[report.steps["gradient_norm"].notna()]
    wrong = whole[whole["gradient_norm"] != whole["reference_gradient_norm"]]
    assert wrong["step"].min() == report.findings["divergence"]["parameter"]["step"]
    assert report.findings["divergence"]["loss"]["step"] > wrong["step"].min()  # the losses tell it later


def test_looking_at_the_norm_leaves_no_trace(
    run: Run, shared_run: Shared, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No record, no ordering edge, no virtual time: what the run leaves is the same without the look."""
    _, folder = shared_run(**MOVED)
    monkeypatch.setattr(program._Watch, "norm", lambda *_: None)
    run(folder=tmp_path / "without", **MOVED)
    seen, unseen = fingerprint(folder), fingerprint(tmp_path / "without")
    assert {name for name in seen if seen[name] != unseen[name]} == {"metrics.csv"}
    assert "trace/rank1.trace" in seen
