"""Chooses, of published step times, the rows that the dry run is held to: by a rule that sees no step time.

``throughput.csv`` has every row of a collection of published measurements that is purely data-parallel (no tensor,
pipeline, context or expert parallelism), each with its configuration, its source and that source's commit. The rule is
:func:`verdict` for what can be predicted, and :func:`choice` for how many rows of one source are taken. Both were
written and committed before any row was predicted.
"""

from __future__ import annotations

from pathlib import Path

import pandas as pd

FILE = Path(__file__).with_name("throughput.csv")
CHOSEN = "chosen"
FEWEST_GPUS, MOST_GPUS = 4, 512
LARGEST = "llm-foundry"  # the source that has most of the rows, of which only a part is taken
SAMPLED = "not drawn from its group"

_EXCLUDED = (
    ("framework", "MaxText", "JAX: its programs do not run on a simulated GPU of torch"),
    ("precision", "(?i)fp8|float8", "8 bit products: no published times of their kernels by shape"),
    ("sharding", "(?i)offload", "offload to the host: the processor's optimizer and its memory have no model"),
    ("compile", "yes", "torch.compile: inductor's fused kernels are not those of the program run dry"),
    ("table", "mimo_vlm", "a vision model beside the decoder, whose sizes are not published"),
)
"""Columns, patterns, and the reasons why such a row is not predicted."""


def read() -> pd.DataFrame:
    """Return all rows of the file."""
    return pd.read_csv(FILE)


def verdict(rows: pd.DataFrame) -> pd.Series:
    """Return, by row, why it cannot be predicted, or :data:`CHOSEN`."""
    found = pd.Series(CHOSEN, index=rows.index)
    for column, pattern, reason in reversed(_EXCLUDED):
        found[rows[column].fillna("").str.contains(pattern)] = reason
    found[~rows.gpus.between(FEWEST_GPUS, MOST_GPUS)] = f"not {FEWEST_GPUS} to {MOST_GPUS} GPUs"
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
