"""Measures an optimizer step on the simulated GPU against the same step on plain gloo.

Runs in a process of its own with a simulated GPU; plain runs are forks of that process too, and do not use the GPU.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from benchmarks.figures import Figure

LIMIT = 1.5
ROUNDS = 3
STEPS = 10
_DROPPED = 2  # caches fill in the first steps: output shapes, call sites, DeepSpeed's own trace of the model


class Run(NamedTuple):
    """Times of a run: seconds of a step (median of a rank's steps, then of the ranks), the run's processor seconds."""

    step: float
    processor: float


def measure(say: Callable[[str], None]) -> list[Figure]:
    """Measure rounds of plain and simulated runs, in turn, so that both see the same load."""
    say(f"step: {ROUNDS} rounds")
    done = subprocess.run([sys.executable, "-m", "benchmarks.step"], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"the steps could not be measured:\n{done.stderr[-2000:]}")
    rounds = json.loads(done.stdout.splitlines()[-1])
    plain, simulated, ratios, work = ([one[name] for one in rounds] for name in ("plain", "simulated", "wall", "work"))
    note = f"median of {ROUNDS} rounds side by side: {min(work):.2f} to {max(work):.2f}"
    return [
        Figure("step", "plain gloo step", median(plain) * 1e3, "ms"),
        Figure("step", "simulated step", median(simulated) * 1e3, "ms"),
        Figure("step", "simulated step against plain", median(ratios), "times"),
        Figure("step", "simulated step against plain, processor time", median(work), "times", LIMIT, note),
    ]


def once(steps: int, *, simulated: bool, **options: Any) -> Run:
    """Run the main scenario with ``options`` for ``steps`` steps."""
    from streamrace.scenarios import program
    from streamrace.scenarios.messages import Report, StepDone
    from streamrace.scenarios.scenario import scenario

    seconds: dict[int, list[float]] = defaultdict(list)

    def receive(rank: int, report: Report) -> None:
        if isinstance(report, StepDone) and report.step > _DROPPED and report.seconds:
            seconds[rank].append(report.seconds)

    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    with TemporaryDirectory() as folder:
        program.run(scenario(steps=steps, **options), simulated=simulated, folder=Path(folder), receive=receive)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Run(median(median(those) for those in seconds.values()) if seconds else 0.0, used)


def main() -> None:
    """Measure in the process with the GPU; the cost of starting and of the steps that fill caches is subtracted."""
    from streamrace.device.launch import start

    start()
    from streamrace.scenarios import program

    program.preload()
    rounds = []
    for _ in range(ROUNDS):
        plain, simulated = once(STEPS, simulated=False), once(STEPS, simulated=True)
        work = [
            many.processor - once(_DROPPED, simulated=on).processor for many, on in ((plain, False), (simulated, True))
        ]
        wall = simulated.step / plain.step
        rounds.append({"plain": plain.step, "simulated": simulated.step, "wall": wall, "work": work[1] / work[0]})
    print(json.dumps(rounds))


if __name__ == "__main__":
    main()
