"""Chooses, of published step times, the rows that the dry run is held to: by a rule that sees no step time.

Two files have all rows of a collection of published measurements, each with its configuration, its source and that
source's commit: ``throughput.csv`` the purely data-parallel ones (no tensor, pipeline, context or expert parallelism),
``throughput_model_parallel.csv`` those with a tensor- or pipeline-parallel model. The rules are :func:`verdict` and
:func:`model_parallel_verdict` for what can be predicted, :func:`choice` and :func:`model_parallel_choice` for how many
rows of one source are taken. Each was written and committed before any row of its file was predicted.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

FILE = Path(__file__).with_name("throughput.csv")
MODEL_PARALLEL = Path(__file__).with_name("throughput_model_parallel.csv")
CHOSEN = "chosen"
FEWEST_GPUS, MOST_GPUS = 4, 512
LARGEST = "llm-foundry"  # the source that has most of the rows, of which only a part is taken
LARGEST_MODEL_PARALLEL = "bigscience"
SAMPLED = "not drawn from its group"

Exclusions = Sequence[tuple[str, str, str]]
"""Columns, patterns, and the reasons why such a row is not predicted."""

_EXCLUDED: Exclusions = (
    ("framework", "MaxText", "JAX: its programs do not run on a simulated GPU of torch"),
    ("precision", "(?i)fp8|float8", "8 bit products: no published times of their kernels by shape"),
    ("sharding", "(?i)offload", "offload to the host: the processor's optimizer and its memory have no model"),
    ("compile", "yes", "torch.compile: inductor's fused kernels are not those of the program run dry"),
    ("table", "mimo_vlm", "a vision model beside the decoder, whose sizes are not published"),
)
_EXCLUDED_MODEL_PARALLEL: Exclusions = (
    _EXCLUDED[1],
    _EXCLUDED[3],
    ("cp", r"^[2-9]|^\d\d", "context parallelism: Megatron's is TransformerEngine's, which needs CUDA"),
    ("ep", r"^[2-9]|^\d\d", "experts: how many tokens each gets depends on values"),
    ("framework", "^torchtitan", "one row of torchtitan, and it is not stated what of it is compiled"),
)
_GEOMETRY = ["layers", "hidden", "heads", "vocab", "seq", "micro_batch"]
_SAME = [*_GEOMETRY, "gpu", "gpus", "global_batch", "tp", "pp", "vpp", "precision", "step_time_s"]


def read(file: Path = FILE) -> pd.DataFrame:
    """Return all rows of the file."""
    return pd.read_csv(file)


def _verdict(rows: pd.DataFrame, excluded: Exclusions) -> pd.Series:
    found = pd.Series(CHOSEN, index=rows.index)
    for column, pattern, reason in reversed(excluded):
        found[rows[column].map(_text).str.contains(pattern)] = reason
    found[~rows.gpus.between(FEWEST_GPUS, MOST_GPUS)] = f"not {FEWEST_GPUS} to {MOST_GPUS} GPUs"
    return found


def _text(value: Any) -> str:
    if pd.isna(value):
        return ""
    return f"{value:g}" if isinstance(value, float) else str(value)


def verdict(rows: pd.DataFrame) -> pd.Series:
    """Return, by row, why it cannot be predicted, or :data:`CHOSEN`."""
    return _verdict(rows, _EXCLUDED)


def model_parallel_verdict(rows: pd.DataFrame) -> pd.Series:
    """Return, by row of a tensor- or pipeline-parallel model, why it cannot be predicted, or :data:`CHOSEN`."""
    found = _verdict(rows, _EXCLUDED_MODEL_PARALLEL)
    found[(found == CHOSEN) & rows[_GEOMETRY].isna().any(axis=1)] = "its sizes are not stated"
    return found


def choice(rows: pd.DataFrame) -> pd.Series:
    """Return, by row, :data:`CHOSEN`, or why it is not predicted.

    All rows of every source that can be predicted are chosen, but for :data:`LARGEST`. Its rows are grouped by GPU and
    model. A group that was measured on several numbers of GPUs gives three rows, another one two: in the order of GPUs,
    sequence and place in the table the first, the last, and the middle one.
    """
    found = verdict(rows)
    of_largest = rows[(rows.source_id == LARGEST) & (found == CHOSEN)]
    drawn: list[int] = []
    for _, group in of_largest.groupby(["gpu", "model"]):
        order = group.sort_values(["gpus", "seq"], kind="stable").index
        places = {0, len(order) - 1} | ({len(order) // 2} if group.gpus.nunique() > 1 else set())
        drawn += [int(order[place]) for place in places]
    found[of_largest.index.difference(drawn)] = SAMPLED
    return found


def model_parallel_choice(rows: pd.DataFrame) -> pd.Series:
    """Return, by row of a tensor- or pipeline-parallel model, :data:`CHOSEN`, or why it is not predicted.

    All rows that can be predicted are chosen, but for repetitions of an earlier row, with its step time, in another
    release's table, and for :data:`LARGEST_MODEL_PARALLEL`: of those with the same width and the same degrees of
    tensor and pipeline parallelism, the first in the table.
    """
    found = model_parallel_verdict(rows)
    able = rows[found == CHOSEN]
    again = able.index[able.duplicated(_SAME)]
    found[again] = "the same row in another release's table"
    of_largest = rows[(rows.source_id == LARGEST_MODEL_PARALLEL) & (found == CHOSEN)]
    found[of_largest.index[of_largest.duplicated(["hidden", "tp", "pp"])]] = SAMPLED
    return found
