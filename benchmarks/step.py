"""One optimizer step on the simulated accelerator, against the same step on plain gloo."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.figures import Figure
from scenarios import program
from scenarios.scenario import Scenario, scenario

LIMIT = 3.0
ROUNDS = 3
STEPS = 10
_DROPPED = 2  # caches fill in the first steps: output shapes, call sites, DeepSpeed's own trace of the model


def measure(say: Callable[[str], None]) -> list[Figure]:
    """Rounds of one plain and one simulated run, in turn, so that both meet the same weather."""
    program.preload()
    plain, simulated = [], []
    for round_ in range(1, ROUNDS + 1):
        say(f"step: round {round_} of {ROUNDS}")
        plain.append(seconds_per_step(scenario(steps=STEPS), simulated=False))
        simulated.append(seconds_per_step(scenario(steps=STEPS), simulated=True))
    ratios = [ours / theirs for ours, theirs in zip(simulated, plain, strict=True)]
    note = f"median of {ROUNDS} rounds side by side: {min(ratios):.2f} to {max(ratios):.2f}"
    return [
        Figure("step", "plain gloo step", median(plain) * 1e3, "ms"),
        Figure("step", "simulated step", median(simulated) * 1e3, "ms"),
        Figure("step", "simulated step against plain", median(ratios), "times", LIMIT, note),
    ]


def seconds_per_step(made: Scenario, *, simulated: bool) -> float:
    """Median over a rank's steps, then over the ranks."""
    seconds: dict[int, list[float]] = defaultdict(list)

    def hear(rank: int, message: dict[str, Any]) -> None:
        if message["kind"] == "step" and message["step"] > _DROPPED and message["seconds"]:
            seconds[rank].append(message["seconds"])

    with TemporaryDirectory() as folder:
        program.run(made, simulated=simulated, folder=Path(folder), hear=hear)
    return median(median(steps) for steps in seconds.values())
