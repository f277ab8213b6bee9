"""Measures the errors of dry runs against published steps on A100 and H100, with those that other simulators publish.

The row ``published`` runs ``python -m papers throughput`` whole: 123 steps, in some half an hour on two cores. The row
``pipelines`` runs it with ``--model-parallel``: 87 steps, in about an hour.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd

from benchmarks.device_rows import shell
from benchmarks.figures import Figure

LIMIT_MEAN, LIMIT_MEDIAN, LIMIT_STEP, LIMIT_MEMORY = 12.0, 8.0, 15.0, 5.0  # %
_PHANTORA_S = {512: 15.85, 1024: 15.90, 2048: 18.63, 4096: 32.75}  # by sequence: tohtana/phantora-seq-gap-repro
_OTHERS = {
    "SimuMax, on A100: -3.6 to +3.8 %": 3.8,
    "SimAI, in the mean (NSDI 2025)": 1.9,
    "Proteus, in the mean (arXiv 2306.02267)": 3.0,
    "vTrain, on one node (arXiv 2312.12391)": 8.4,
}


def measure(say: Callable[[str], None]) -> list[Figure]:
    """Run the study into ``runs/bench-published``; return its figures. Raises RuntimeError where it fails."""
    say("published: 123 steps (half an hour)")
    return figures(_run("bench-published"))


def measure_pipelines(say: Callable[[str], None]) -> list[Figure]:
    """Run the study of tensor and pipeline parallelism into ``runs/bench-pipelines``; otherwise as :func:`measure`."""
    say("pipelines: 87 steps (an hour)")
    return pipeline_figures(_run("bench-pipelines", "--model-parallel"))


def _run(name: str, *options: str) -> pd.DataFrame:
    words = ["papers", "throughput", "--name", name, "--overwrite", *options]
    done = subprocess.run([sys.executable, "-m", *words], env=shell(), capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"'python -m {' '.join(words)}' ended with {done.returncode}:\n{done.stderr}")
    return pd.read_csv(Path("runs", name, "throughput.csv"))


def pipeline_figures(steps: pd.DataFrame) -> list[Figure]:
    """Return the figures of the table with tensor and pipeline parallelism, for which no limits were set."""
    size = 100 * steps.error.abs()
    allocated = steps[steps.source_id == "megatron-ci"]  # the source that tells what torch allocates
    memory = 100 * (allocated.peak_gib / allocated.mem_gib - 1)
    note = f"from facts alone; {len(steps)} steps of {steps.source_id.nunique()} sources"
    told = f"{len(allocated)} steps: {memory.min():+.1f} to {memory.max():+.1f} %; allocated, as its source reports"
    return [
        Figure("pipelines", "tensor and pipeline parallelism: mean error", float(size.mean()), "%", None, note),
        Figure("pipelines", "... median error", float(size.median()), "%"),
        Figure("pipelines", "... peak of memory: worst error", float(memory.abs().max()), "%", None, told),
    ]


def figures(steps: pd.DataFrame) -> list[Figure]:
    """Return the figures of the study's table: step times, the steps that Phantora publishes too, and memory."""
    size = 100 * steps.error.abs()
    note = f"from facts alone; {len(steps)} steps of {steps.source_id.nunique()} sources"
    found = [
        _figure("step time on A100 and H100: mean error", float(size.mean()), LIMIT_MEAN, note),
        _figure("... median error", float(size.median()), LIMIT_MEDIAN),
    ]
    rows: Any = steps[steps.source_id.str.startswith("phantora") & steps.table.str.contains("expandable")].itertuples()
    for row in rows:
        error = f"measured {row.theirs_s:.2f} s, ours {row.ours_s:.2f} s, {row.error:+.0%}"
        other = 100 * (_PHANTORA_S[row.seq] / row.theirs_s - 1)
        what = f"ZeRO-3 on 4 H100, sequence {row.seq}: error"
        found += [
            _figure(what, 100 * abs(row.error), LIMIT_STEP, error),
            _figure(
                "... Phantora's, as published there", abs(other), None, f"{_PHANTORA_S[row.seq]:.2f} s, {other:+.0f} %"
            ),
        ]
    known = steps[steps.mem_gib.notna()]
    off = 100 * (known.reserved_gib / known.mem_gib - 1)
    note = f"{len(known)} steps: {off.min():+.0f} to {off.max():+.0f} %; what torch reserves, and its source reports"
    found.append(_figure("peak of memory: worst error", float(off.abs().max()), LIMIT_MEMORY, note))
    return [*found, *(_figure(f"published of other rows: {who}", value) for who, value in _OTHERS.items())]


def _figure(what: str, value: float, limit: float | None = None, note: str = "") -> Figure:
    return Figure("published", what, value, "%", limit, note)
