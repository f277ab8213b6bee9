"""Running scenarios from tests, the way the command line does."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from detectors import Values
from reports.findings import Findings
from reports.terminal import Progress
from repro.commands import session
from scenarios.program import preload
from scenarios.scenario import Scenario, scenario

_TIMING = ("fix", "hardware", "stands_for", "stands_for_micro_batch", "slow", "jitter", "timing_seed", "watch")
_references: dict[str, Values] = {}


@pytest.fixture(scope="session", autouse=True)
def _imports() -> None:
    preload()


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., Findings]:
    """``run(fix="none", ...)`` runs a scenario beside its reference. Small and short unless told otherwise."""
    count = iter(range(100))

    def call(*, folder: Path | None = None, **options: Any) -> Findings:
        made = scenario(**{"size": "tiny", "steps": 3, "sequence": 32, **options})
        made.check()
        where = session.new_folder(folder or tmp_path / f"run{next(count)}", made, overwrite=False)
        with Progress(Console(quiet=True), "", made.steps) as progress:
            return session.simulate(made, where, _reference(made, tmp_path, progress), progress)

    return call


def _reference(made: Scenario, folder: Path, progress: Progress) -> Values:
    """Timing does not change what plain gloo computes: one reference serves all timings and fixes."""
    key = made.model_dump_json(exclude=set(_TIMING))
    if key not in _references:
        _references[key] = session.reference_of(made, folder, progress)
    return _references[key]
