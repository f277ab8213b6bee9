"""What a small model's losses are, live on the simulated GPU."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from scenarios import program
from scenarios.scenario import Scenario


def losses_of(scenario: Scenario, folder: Path) -> dict[int, list[float]]:
    """Rank 0's losses by step, one for each micro-batch. ``folder`` is removed again."""
    heard: dict[int, list[float]] = {}

    def hear(rank: int, message: dict[str, Any]) -> None:
        if rank == 0 and message["kind"] == "step":
            for step, _, loss in message["losses"]:
                heard.setdefault(step, []).append(loss)

    program.run(scenario, simulated=True, folder=folder, hear=hear)
    shutil.rmtree(folder)
    return heard
