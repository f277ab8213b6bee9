"""Running scenarios from tests, the way the command line does."""

from __future__ import annotations

import os
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgpack
import pytest
from filelock import FileLock
from rich.console import Console

from detectors import Values
from reports.data.findings import Findings
from reports.screen.terminal import Progress
from repro.commands import session
from scenarios.program import preload
from scenarios.scenario import Scenario, scenario

_TIMING = ("fix", "hardware", "stands_for", "stands_for_micro_batch", "slow", "jitter", "timing_seed", "watch")
_references: dict[str, Values] = {}


@pytest.fixture(scope="session", autouse=True)
def _imports() -> None:
    preload()


@pytest.fixture
def run(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Findings]:
    """``run(fix="none", ...)`` runs a scenario beside its reference. Small and short unless told otherwise."""
    count = iter(range(100))
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base

    def call(*, folder: Path | None = None, **options: Any) -> Findings:
        made = scenario(**{"size": "tiny", "steps": 3, "sequence": 32, **options})
        made.check()
        where = session.new_folder(folder or tmp_path / f"run{next(count)}", made, overwrite=False)
        with Progress(Console(quiet=True), "", made.steps) as progress:
            return session.simulate(made, where, _reference(made, tmp_path, shared, progress), progress)

    return call


def _reference(made: Scenario, folder: Path, shared: Path, progress: Progress) -> Values:
    """Timing does not change what plain gloo computes: one reference serves all timings, fixes and test processes."""
    key = made.model_dump_json(exclude=set(_TIMING))
    if key not in _references:
        file = shared / f"reference-{sha256(key.encode()).hexdigest()[:16]}"
        with FileLock(f"{file}.lock"):
            if not file.exists():
                values = session.reference_of(made, folder, progress)
                file.write_bytes(msgpack.packb([values.losses, values.uses, values.final, values.norms]))
            losses, uses, final, norms = msgpack.unpackb(file.read_bytes(), strict_map_key=False, use_list=False)
        values = Values(final={rank: dict(sums) for rank, sums in final.items()}, norms=norms)
        for rank in uses:
            values.add(rank, losses[rank], uses[rank])
        _references[key] = values
    return _references[key]
