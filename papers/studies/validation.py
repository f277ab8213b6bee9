"""Measures the effect of the race on learning: the loss on a held-out split, with and without hpZ.

The reviewers of arXiv 2407.01614 ask for it: the paper shows training losses. A small model trains live on the
simulated GPU on MMLU's ``dev`` and ``test`` questions (the project's own sample of that format), and after every few
steps is evaluated on ``val`` through the same engine, as a user evaluates: under ZeRO-3, under hpZ, and under hpZ
without its synchronisation, in a timing in which the race shows.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd

from streamrace.frameworks.deepspeed.fixes import Fix
from streamrace.scenarios import program
from streamrace.scenarios.base import ScenarioError
from streamrace.scenarios.messages import Report, StepDone, Validated
from streamrace.scenarios.scenario import Scenario, scenario
from streamrace.studies.process_pool import OnProgress, quiet, side_by_side

CONFIGURATIONS: dict[str, dict[str, Any]] = {
    "ZeRO-3": {"hpz": 1},
    "hpZ": {"hpz": 2},
    "hpZ without the synchronisation": {"hpz": 2, "fix": Fix.NONE},
}
STEPS, EVERY = 40, 5
SMALL: dict[str, Any] = {"size": "tiny", "accumulation": 1, "seed": 1}
COLUMNS = ("configuration", "step", "training_loss", "validation_loss", "equal")


def scenarios(names: Sequence[str] = (), *, steps: int = STEPS, **options: Any) -> dict[str, Scenario]:
    """Return the scenarios by configuration (default: all). ``options``: override those of :data:`SMALL`.

    Raises :class:`ScenarioError`.
    """
    if options.get("sharding"):
        raise ScenarioError("validation is of DeepSpeed: leave sharding out")
    return {
        name: scenario(**{**SMALL, "steps": steps, **options, **CONFIGURATIONS[name]})
        for name in names or CONFIGURATIONS
    }


def study(
    todo: dict[str, Scenario],
    folder: Path,
    *,
    every: int = EVERY,
    workers: int | None = None,
    progress: OnProgress = quiet,
) -> pd.DataFrame:
    """Return one row for each configuration and step. ``folder``: for the runs' files, which are removed afterwards.

    Columns: ``configuration``, ``step``; ``training_loss``, the mean over the ranks' micro-batches of the step;
    ``validation_loss``, the mean over the held-out batches of all ranks after it (NaN in the steps between, and where a
    rank's loss is NaN); ``equal``: both are, to the bit, the first configuration's.

    :func:`streamrace.scenarios.program.preload` must have been called. Raises
    :class:`streamrace.device.ranks.cluster.RankFailed`.
    """
    rows: dict[str, list[dict[str, Any]]] = {}
    for (name, _), found in side_by_side(
        partial(_losses, folder=folder, every=every), list(todo.items()), workers=workers
    ):
        rows[name] = found
        progress(len(rows), len(todo), name)
    frame = pd.DataFrame([row for name in todo for row in rows[name]], columns=list(COLUMNS[:-1]))
    first = frame[frame.configuration == next(iter(todo))].set_index("step")
    columns = ["training_loss", "validation_loss"]
    theirs = first.loc[frame.step, columns].reset_index(drop=True)
    same = (frame[columns] == theirs) | (frame[columns].isna() & theirs.isna())
    return frame.assign(equal=same.all(axis=1))


def _losses(item: tuple[str, Scenario], *, folder: Path, every: int) -> list[dict[str, Any]]:
    name, one = item
    mine = folder / name.replace(" ", "-")
    training: dict[int, list[float]] = {step: [] for step in range(1, one.steps + 1)}
    held_out: dict[int, list[float]] = {}

    def receive(rank: int, report: Report) -> None:
        if isinstance(report, StepDone):
            for step, _, loss in report.losses:
                training[step].append(loss)
        elif isinstance(report, Validated):
            held_out.setdefault(report.step, []).extend(report.losses)

    program.run(one, simulated=True, folder=mine, receive=receive, validate_every=every)
    shutil.rmtree(mine)
    # Sorted, as ranks report in any order and a sum of floats depends on it.
    return [
        {
            "configuration": name,
            "step": step,
            "training_loss": _mean(training[step]),
            "validation_loss": _mean(held_out.get(step, [])),
        }
        for step in training
    ]


def _mean(values: Sequence[float]) -> float:
    return sum(sorted(values)) / len(values) if values else float("nan")
