"""Trains a small model live on the simulated GPU and collects its losses."""

from __future__ import annotations

import shutil
from pathlib import Path

from streamrace.scenarios import program
from streamrace.scenarios.messages import Report, StepDone
from streamrace.scenarios.scenario import Scenario


def losses_of(scenario: Scenario, folder: Path) -> dict[int, list[float]]:
    """Return rank 0's losses by step, one for each micro-batch. ``folder`` is removed afterwards."""
    losses: dict[int, list[float]] = {}

    def receive(rank: int, report: Report) -> None:
        if rank == 0 and isinstance(report, StepDone):
            for step, _, loss in report.losses:
                losses.setdefault(step, []).append(loss)

    program.run(scenario, simulated=True, folder=folder, receive=receive)
    shutil.rmtree(folder)
    return losses
