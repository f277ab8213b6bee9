"""Running scenarios from tests, the way the command line does."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from streamrace.detectors import Values
from streamrace.reports.data.findings import Findings
from streamrace.reports.screen.terminal import Progress
from streamrace.repro.sessions import folders, session
from streamrace.scenarios.program import preload
from streamrace.scenarios.scenario import scenario

_TIMING = ("fix", "hardware", "stands_for", "stands_for_micro_batch", "slow", "jitter", "timing_seed", "watch")


@pytest.fixture(scope="session", autouse=True)
def _imports() -> None:
    preload()


@pytest.fixture(scope="session")
def make_run(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Findings]:
    """``make_run(fix="none", folder=..., ...)`` runs a scenario beside its reference. Small unless told otherwise.

    Timing does not change what plain gloo computes: one reference serves all timings, fixes and tests.
    """
    references: dict[str, Values] = {}

    def call(*, folder: Path, rests: bool = False, **options: Any) -> Findings:
        made = scenario(**{"size": "tiny", "steps": 3, "sequence": 32, **options})
        made.check()
        where = folders.of_scenario(folder, made, overwrite=False)
        key = made.model_dump_json(exclude=set(_TIMING))
        with Progress(Console(quiet=True), "", made.steps) as progress:
            if key not in references:
                references[key] = session.reference_of(made, tmp_path_factory.mktemp("reference"), progress)
            return session.simulate(made, where, references[key], progress, rests=rests)

    return call


@pytest.fixture(scope="session")
def shared_run(
    make_run: Callable[..., Findings], tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., tuple[Findings, Path]]:
    """``shared_run(**options)``: findings and folder of a run that several tests judge and none changes."""
    runs: dict[str, tuple[Findings, Path]] = {}

    def call(**options: Any) -> tuple[Findings, Path]:
        key = repr(sorted(options.items()))
        if key not in runs:
            folder = tmp_path_factory.mktemp("shared") / "run"
            runs[key] = make_run(folder=folder, **options), folder
        return runs[key]

    return call


@pytest.fixture
def run(tmp_path: Path, make_run: Callable[..., Findings]) -> Callable[..., Findings]:
    """The same in a folder of the test's own, unless told otherwise."""
    count = iter(range(100))

    def call(*, folder: Path | None = None, **options: Any) -> Findings:
        return make_run(folder=folder or tmp_path / f"run{next(count)}", **options)

    return call
