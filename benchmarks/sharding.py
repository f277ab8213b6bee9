"""Measures an optimizer step of our sharded engine against DeepSpeed's ZeRO-3: same model, ranks and data, on gloo."""

from __future__ import annotations

from collections.abc import Callable
from statistics import median

from benchmarks.figures import Figure
from benchmarks.step import STEPS, once
from streamrace.scenarios import program

LIMIT = 1.1
ROUNDS = 3
STRATEGIES = ("GGG", "IIG")


def measure(say: Callable[[str], None]) -> list[Figure]:
    """Measure rounds of one run each, in turn, so that all see the same load."""
    program.preload()
    theirs: list[float] = []
    ours: dict[str, list[float]] = {name: [] for name in STRATEGIES}
    for round_ in range(1, ROUNDS + 1):
        say(f"sharding: round {round_} of {ROUNDS}")
        theirs.append(once(STEPS, simulated=False, hpz=1).step)
        for name, seconds in ours.items():
            seconds.append(once(STEPS, simulated=False, sharding=name).step)
    figures = [Figure("sharding", "a step of DeepSpeed's ZeRO-3 on gloo, 4 ranks", median(theirs) * 1e3, "ms")]
    for name, seconds in ours.items():
        ratios = [mine / other for mine, other in zip(seconds, theirs, strict=True)]
        note = f"median of {ROUNDS} rounds side by side: {min(ratios):.2f} to {max(ratios):.2f}"
        figures.append(Figure("sharding", f"a step of our {name}", median(seconds) * 1e3, "ms"))
        figures.append(Figure("sharding", f"our {name} against ZeRO-3", median(ratios), "times", LIMIT, note))
    return figures
