"""Runs the users' program, small and live: transformers' Trainer with DeepSpeed's hpZ, on a Llama of eight layers.

:func:`losses` runs it under a release on simulated GPUs. A matrix product takes a hundred times its normal duration, so
that its ratio to a launch of the host is that of a 7B model; a small product would end before the next launch. The
program is :mod:`streamrace.scenarios.trainer_program`; its process imports the release.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
from collections.abc import Mapping

import pandas as pd

from streamrace import checkout
from streamrace.process import lifetime
from streamrace.scenarios.base import ScenarioError
from streamrace.scenarios.trainer_program import SAID

RANKS, STEPS = 4, 4
TIMING = "t1,x100:kernel:aten::mm"
_LIMIT_S = 900
_COLUMNS = ["release", "step", "loss", "gradient_norm"]


def losses(release: str, environment: Mapping[str, str], steps: int = STEPS) -> pd.DataFrame:
    """Return a row for each step: the loss and the norm of the gradients that Trainer prints.

    ``environment``: of a process that imports ``release``. Raises :class:`streamrace.scenarios.base.ScenarioError`.
    """
    command = lifetime.module("streamrace.device", "--ranks", str(RANKS), "--timing", TIMING)
    command += ["-m", "streamrace.scenarios.trainer_program", str(steps)]
    checkout_path = str(checkout.IMPORTED_FROM)
    behind = environment.get("PYTHONPATH", "")
    variables = {
        **environment,
        "PYTHONPATH": os.pathsep.join(part for part in (behind, checkout_path) if part),
        "DS_ACCELERATOR": "cuda",
        "OMP_NUM_THREADS": "1",
    }
    try:
        done = subprocess.run(
            lifetime.command(command), env=variables, capture_output=True, text=True, timeout=_LIMIT_S, errors="replace"
        )
    except subprocess.TimeoutExpired:
        raise ScenarioError(f"Trainer under DeepSpeed {release} did not end within {_LIMIT_S} s") from None
    rows = [json.loads(line[len(SAID) :]) for line in done.stdout.splitlines() if line.startswith(SAID)]
    if done.returncode or not rows:
        last = done.stderr.strip().rpartition("\n")[2]
        raise ScenarioError(f"Trainer under DeepSpeed {release} ended with {done.returncode}: {last}")
    return pd.DataFrame(
        [
            {"release": release, "step": step, "loss": loss, "gradient_norm": math.nan if norm is None else norm}
            for step, loss, norm in rows
        ],
        columns=_COLUMNS,
    )
