"""Compares the peak memory of a dry run with the count of torch's own tracker (``torch.distributed._tools``).

Both run :mod:`streamrace.scenarios.tracked_program`, in processes of their own: a plain step, forward, backward and
Adam, on one GPU. The dry run goes through the simulated GPU's allocator, and
:class:`streamrace.metrics.memory.MemoryMetrics` reads its trace. The tracker's run goes through ``FakeTensorMode`` and
allocates nothing: ``MemTracker`` follows the storages from operator to operator, each rounded up to 512 bytes. The two
share torch and the model, and no line of the counting. The FSDP2 case is rank 0 of several: ``FSDPMemTracker`` follows
the tensors of a dry run, by their storages and not by the allocator.

**Where the tracker does not apply.** The tracker sees the tensors that operators return, and knows a step of plain
torch. It does not count DeepSpeed's own flat buffers, workspaces within a kernel, memory that ``record_stream`` holds
back, the allocator's fragments, or anything that depends on a tensor's values, which a fake tensor lacks.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import pandas as pd

from streamrace import checkout
from streamrace.metrics import MemoryMetrics
from streamrace.process import lifetime
from streamrace.scenarios.base import ScenarioError
from streamrace.scenarios.tracked_program import SAID, TrackedCase
from streamrace.studies.process_pool import OnProgress, quiet, side_by_side
from streamrace.trace.files import TraceReader

COLUMNS = {
    "model": "str", "layers": "int64", "precision": "str", "attention": "str", "checkpointing": "bool",
    "micro_batch": "int64", "sequence": "int64", "steps": "int64", "ranks": "int64", "ours": "int64", "theirs": "int64",
    "error": "float64",
}  # fmt: skip
GIB = 1 << 30
_LIMIT_S = 300


def cases() -> list[TrackedCase]:
    """List the cases: Llama-2-7B whole; two of its layers with 4 x 2048 tokens, each way; another family; FSDP2."""
    plain = TrackedCase("llama-2-7b", "bf16", "eager", checkpointing=False, layers=2, micro_batch=4, sequence=2048)
    ways = product(("bf16", "fp32"), ("eager", "sdpa"), (False, True))
    return [
        replace(plain, layers=None, checkpointing=True, micro_batch=1),
        *(replace(plain, precision=kind, attention=form, checkpointing=on) for kind, form, on in ways),
        replace(plain, model="falcon-7b"),
        replace(plain, checkpointing=True, ranks=8),
    ]


def study(
    todo: Sequence[TrackedCase], folder: Path, progress: OnProgress = quiet, *, workers: int | None = None
) -> pd.DataFrame:
    """Run each case both ways; a row each, in their order. ``folder`` holds the traces while they are read.

    Columns: the fields of the case (``layers`` 0: the model's own); ``ours`` and ``theirs``, bytes at the peak, each
    tensor rounded up to 512; ``error``, the first over the second, less 1. Raises :class:`ScenarioError`.
    """
    rows: dict[int, dict[str, Any]] = {}
    work = partial(_row, folder=folder)
    for number, ((at, _), row) in enumerate(side_by_side(work, list(enumerate(todo)), workers=workers), 1):
        rows[at] = row
        progress(number, len(todo), f"{row['model']}, {row['attention']}: {row['error']:+.3%}")
    return pd.DataFrame([rows[at] for at in range(len(todo))], columns=list(COLUMNS))


def _row(numbered: tuple[int, TrackedCase], *, folder: Path) -> dict[str, Any]:
    at, case = numbered
    argument = json.dumps(asdict(case))
    trace = folder / f"tracked-{at}.trace"
    folder.mkdir(parents=True, exist_ok=True)
    dry = ["--dry", "--gpus", str(case.ranks)]
    _run([*dry, "--trace", str(trace), "-m", "streamrace.scenarios.tracked_program", argument], case)
    metric, reader = MemoryMetrics(), TraceReader(trace)
    try:
        metric.feed(reader.read())
    finally:
        reader.close()
    trace.unlink()
    our_peak = metric.result().peak
    tracker_peak = _run(
        [*(dry if case.ranks > 1 else []), "-m", "streamrace.scenarios.tracked_program", "--tracked", argument], case
    )["Total"]
    fields = {**asdict(case), "layers": case.layers or 0}
    return {**fields, "ours": our_peak, "theirs": tracker_peak, "error": our_peak / tracker_peak - 1}


def _run(words: list[str], case: TrackedCase) -> dict[str, int]:
    """Run the program and return its last report, which follows the complete trace; the exit status is ignored."""
    checkout_path = str(checkout.IMPORTED_FROM)
    path = os.pathsep.join(part for part in (checkout_path, os.environ.get("PYTHONPATH", "")) if part)
    variables = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "STREAMRACE_MEMORY": "1000GiB"}
    command = lifetime.module("streamrace.device", *words)
    try:
        done = subprocess.run(
            lifetime.command(command), env=variables, capture_output=True, text=True, timeout=_LIMIT_S, errors="replace"
        )
    except subprocess.TimeoutExpired:
        raise ScenarioError(f"the tracked step of {case.model} did not end within {_LIMIT_S} s") from None
    lines = [line[len(SAID) :] for line in done.stdout.splitlines() if line.startswith(SAID)]
    if not lines:
        last = done.stderr.strip().rpartition("\n")[2]
        raise ScenarioError(f"the tracked step of {case.model} ended with {done.returncode}: {last}")
    result: dict[str, int] = json.loads(lines[-1])
    return result
