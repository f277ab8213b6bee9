"""Compares published step times of A100 and H100 runs with dry runs: errors by group, and with one allowed figure."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd

from papers.studies import throughput_jobs, throughput_megatron
from papers.studies.throughput_errors import OFF, calibrated, explained
from papers.studies.throughput_machines import AS_STATED, HOST, ChangedMachine, Figures, network_of
from papers.studies.throughput_rows import CHOSEN, FILE, read
from streamrace.studies.process_pool import OnProgress, quiet, side_by_side

CHANGES = {
    "half_network_s": ChangedMachine(network=0.5),
    "free_host_s": ChangedMachine(host=0.0),
    "twice_host_s": ChangedMachine(host=2.0),
}
"""Seconds of a step, by column, on the row's machine with one change."""
_CONFIGURATION = (
    "model", "layers", "hidden", "heads", "kv_heads", "ffn", "vocab", "gpu", "gpus", "gpus_per_node", "interconnect",
    "seq", "micro_batch", "grad_accum", "global_batch", "sharding", "precision", "recompute", "source_id",
)  # fmt: skip


_MODEL_PARALLEL = ("dp", "tp", "pp", "vpp")


def chosen(sources: Sequence[str] = (), file: Path = FILE) -> pd.DataFrame:
    """Return the rows of ``file`` to predict, of ``sources`` (default: of all)."""
    rows = read(file)
    return rows[(rows.choice == CHOSEN) & (rows.source_id.isin(sources) if sources else True)]


def study(
    rows: pd.DataFrame, folder: Path, *, workers: int | None = None, progress: OnProgress = quiet
) -> pd.DataFrame:
    """Return a row for each of ``rows``: its step time and ours, in seconds, with the error and the parts of ours.

    ``compute_s``, ``exposed_s`` (communication that hides behind no computation) and ``idle_s`` add up to ``ours_s``.
    ``peak_gib``: the most memory that is allocated on a GPU; ``reserved_gib``: that torch reserves. ``accumulation``,
    ``network``, ``program`` and ``host``: what was run for the row. Rows that are off by more than :data:`OFF` are run
    again on machines with one change (:data:`CHANGES`); then see :func:`papers.studies.throughput_errors.explained` and
    :func:`papers.studies.throughput_errors.calibrated`. Rows of equal configuration share one dry run.

    Raises as :func:`papers.studies.throughput_jobs.predicted` and
    :func:`papers.studies.throughput_megatron.predicted`.
    """
    runs = _Runs(rows, folder, workers, progress)
    job = _kind(rows)
    found = runs.figures(rows.index, AS_STATED)
    dropped = ["choice", "grad_accum", "step_time_s"]
    frame = rows.drop(columns=dropped).assign(
        parameters=[job.parameters_of(row) for row in rows.itertuples()],
        accumulation=[job.accumulation_of(row) for row in rows.itertuples()],
        network=[network_of(row) for row in rows.itertuples()],
        program=[job.program_of(row) for row in rows.itertuples()],
        host=HOST,
        theirs_s=rows.step_time_s,
    )
    frame = frame.join(found).assign(error=found.ours_s / rows.step_time_s - 1)
    off = frame.index[frame.error.abs() > OFF]
    for column, machine in CHANGES.items():
        run = off[rows.gpus[off] > rows.gpus_per_node[off]] if machine.network != 1 else off
        frame[column] = runs.figures(run, machine).ours_s if len(run) else float("nan")
    return calibrated(explained(frame))


def _kind(rows: pd.DataFrame) -> Any:
    """Return the module that describes and predicts such rows."""
    return throughput_megatron if "tp" in rows.columns else throughput_jobs


class _Runs:
    """Runs rows on changed machines. Rows of equal configuration share a dry run."""

    def __init__(self, rows: pd.DataFrame, folder: Path, workers: int | None, progress: OnProgress) -> None:
        self._rows, self._folder, self._workers, self._progress = rows, folder, workers, progress
        self._keys = (
            rows[[name for name in (*_CONFIGURATION, *_MODEL_PARALLEL) if name in rows]].map(str).agg("|".join, axis=1)
        )

    def figures(self, chosen: pd.Index, machine: ChangedMachine) -> pd.DataFrame:
        """Return the figures of :func:`predicted` of each of the ``chosen`` rows."""
        keys = self._keys[chosen]
        items = [int(index) for index in chosen[~keys.duplicated()]]
        work = partial(_predicted, rows=self._rows, folder=self._folder, machine=machine)
        found: dict[str, Figures] = {}
        for index, figures in side_by_side(work, items, workers=self._workers):
            found[keys[index]] = figures
            row = self._rows.loc[index]
            self._progress(len(found), len(items), f"{row.source_id}, {row.model}, {row.gpus} x {row.gpu}")
        return pd.DataFrame([found[key] for key in keys], index=chosen)


def _predicted(index: int, *, rows: pd.DataFrame, folder: Path, machine: ChangedMachine) -> Figures:
    figures: Figures = _kind(rows).predicted(next(rows.loc[[index]].itertuples()), folder / str(index), machine)
    return figures
