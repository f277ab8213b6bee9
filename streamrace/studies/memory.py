"""Measures the memory of hpZ's secondary copy, by model and group size, with and without quantization.

The reviewers of arXiv 2407.01614 request this: the overhead of the secondary copy for 7B, 13B, 30B, 65B and 70B. The
paper of ZeRO++ gives a formula, 2 bytes x parameters / group size; here each number is measured on a dry run of stock
DeepSpeed and compared with the formula.

The storage: ``Init._partition_param_sec`` (partition_parameters.py) allocates the secondary partition in the
*parameter's* dtype. ``zero_quantized_weights`` (qwZ) quantizes the input of an all-gather, each time anew, and stores
nothing quantized; only ``zero_quantized_nontrainable_weights`` stores INT8, of frozen parameters, and that is another
option. So qwZ does not shrink the copy, and this is measured too, not taken for granted.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from functools import partial
from pathlib import Path, PurePath
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from streamrace.device.ranks.cluster import RankFailed
from streamrace.metrics import MemoryMetrics
from streamrace.scenarios import rehearsal
from streamrace.scenarios.base import ScenarioError
from streamrace.scenarios.job import Job, job
from streamrace.scenarios.messages import ModelBuilt, RehearsalReport
from streamrace.studies.process_pool import OnProgress, quiet, side_by_side
from streamrace.trace.files import TraceReader, file_of

MODELS = ("llama-2-7b", "llama-2-13b", "llama-30b", "falcon-40b", "llama-65b", "llama-2-70b")
GROUPS = (2, 4, 8, 16)
GROUP = 8  # a node in the paper
ALL_GROUPS = ("llama-2-7b", "llama-2-70b")  # measured with all group sizes by default
CARDS = (40, 80)  # GiB of a GPU
KINDS = (
    "primary", "secondary", "gradient", "master", "optimizer", "bucket", "gathered", "activations", "temporary",
    "buffer", "rounding",
)  # fmt: skip
AT_PEAK = tuple(f"peak_{kind}" for kind in KINDS)
COLUMNS = {
    "model": "str", "group": "int64", "qwz": "bool", "parameters": "int64", "secondary": "int64", "formula": "float64",
    "error": "float64", "peak": "int64", "phase": "str", **dict.fromkeys(AT_PEAK, "int64"),
}  # fmt: skip
"""Columns of the frame and their dtypes: see :func:`study`."""
GIB = 1 << 30


class MemoryCase(NamedTuple):
    """One dry run. ``group``: of hpZ; 1 is ZeRO-3 without it."""

    model: str
    group: int
    qwz: bool

    @property
    def configuration(self) -> str:
        return configuration(self.group, self.qwz)


def configuration(group: int, qwz: bool) -> str:
    """Describe the configuration in words."""
    return "no hpZ" if group == 1 else f"hpZ {group}" + (" + qwZ" if qwz else "")


def cases(
    models: Sequence[str] = (), groups: Sequence[int] = (), *, qwz: bool | None = None, ranks: int = 64
) -> list[MemoryCase]:
    """List the dry runs: each model without hpZ, and with each group size, with and without qwZ; the largest first.

    The defaults take a few minutes: :data:`MODELS`, groups of :data:`GROUP` with and without qwZ, and
    :data:`ALL_GROUPS` with all of :data:`GROUPS` that divide ``ranks``. ``qwz``: both, if None.
    """
    todo: dict[MemoryCase, None] = {}
    for model in models or MODELS:
        todo[MemoryCase(model, 1, False)] = None
        own_groups = groups or (GROUPS if not models and model in ALL_GROUPS else (GROUP,))
        for group in sorted(set(own_groups) - {1}):
            if not groups and ranks % group:
                continue
            if not qwz:
                todo[MemoryCase(model, group, False)] = None
            if qwz or (qwz is None and (groups or group == GROUP)):
                todo[MemoryCase(model, group, True)] = None
    return list(todo)


def study(
    todo: Sequence[MemoryCase],
    folder: Path,
    progress: OnProgress = quiet,
    *,
    workers: int | None = None,
    **options: Any,
) -> pd.DataFrame:
    """Dry-run all cases; one row each, by size and group. ``options``: of the job. It has two steps: the second
    backward pass is the first with Adam's moments in memory, and the first that prefetches.

    Columns, bytes on each GPU: ``model``, ``group`` (1: no hpZ), ``qwz``, ``parameters`` (elements); ``secondary`` as
    measured (its peak), ``formula`` (2 bytes x parameters / group), ``error`` (the first over the second, less 1; NaN
    without hpZ); ``peak`` (the most that is allocated at once), ``phase`` (of the peak), and its composition, by
    :data:`KINDS`: :data:`AT_PEAK`. Excluded is memory that :mod:`streamrace.metrics.memory` does not model, as listed
    there.

    :func:`streamrace.scenarios.rehearsal.preload` must have been called. Raises :class:`ScenarioError`.
    """
    rows = []
    work = partial(_row, folder=folder, options=options)
    for number, (case, row) in enumerate(side_by_side(work, todo, workers=workers), 1):
        rows.append(row)
        progress(number, len(todo), f"{case.model}, {case.configuration}: {row['peak'] / GIB:.1f} GiB at most")
    frame = pd.DataFrame(rows, columns=list(COLUMNS))
    return frame.sort_values(["parameters", "model", "group", "qwz"], ignore_index=True)


def _row(case: MemoryCase, *, folder: Path, options: dict[str, Any]) -> dict[str, Any]:
    case_job: Job = job(**{**options, "model": case.model, "hpz": case.group, "qwz": case.qwz})
    name = f"{PurePath(case.model).stem.replace(':', '-')}-{case.configuration}".replace(" ", "")
    metric, path = MemoryMetrics(), file_of(folder / name / "trace", 0)
    readers: list[TraceReader] = []
    parameters = 0

    def receive(report: RehearsalReport | None) -> None:
        nonlocal parameters
        if isinstance(report, ModelBuilt):
            parameters = report.parameters
        if not readers and path.exists():
            readers.append(TraceReader(path))
        for reader in readers:
            metric.feed(reader.read())

    try:
        rehearsal.run(case_job, folder=folder / name, receive=receive)
        receive(None)
    except RankFailed as error:
        raise ScenarioError(f"the dry run of {name} broke: {error}") from None
    finally:
        for reader in readers:
            reader.close()
    shutil.rmtree(folder / name)
    result = metric.result()
    assert result.moment is not None
    formula = 2 * parameters / case.group if case.group > 1 else 0.0
    secondary = result.kind_peaks.get("secondary", 0)
    return {
        **case._asdict(),
        "parameters": parameters,
        "secondary": secondary,
        "formula": formula,
        "error": secondary / formula - 1 if formula else float("nan"),
        "peak": result.peak,
        "phase": result.moment.phase,
        **{name: result.kinds.get(kind, 0) for name, kind in zip(AT_PEAK, KINDS, strict=True)},
    }


def limits(frame: pd.DataFrame, cards: Sequence[int] = CARDS) -> pd.DataFrame:
    """Compute the size from which on a model no longer fits a GPU, for each configuration measured on several models.

    Columns: ``group``, ``qwz``, ``card`` (GiB); ``fits``, the largest model that fits, and ``fails``, the smallest that
    does not (empty: none was measured); ``parameters`` from which on a model does not fit, and whether that lies
    ``beyond`` the measurements: then it is extrapolated from the nearest model with the slope of all (least squares),
    else interpolated between ``fits`` and ``fails``.
    """
    table = []
    for (group, qwz), rows in frame.groupby(["group", "qwz"]):
        rows = rows.sort_values("peak")
        if rows.parameters.nunique() < 2:
            continue
        for card in cards:
            fitting, failing = rows[rows.peak <= card * GIB], rows[rows.peak > card * GIB]
            beyond = fitting.empty or failing.empty
            points = rows if beyond else pd.concat([fitting.tail(1), failing.head(1)])
            slope, _ = np.polyfit(points.peak / GIB, points.parameters, 1)
            nearest = failing.iloc[0] if fitting.empty else fitting.iloc[-1]
            table.append(
                {
                    "group": group,
                    "qwz": qwz,
                    "card": card,
                    "fits": "" if fitting.empty else fitting.model.iloc[-1],
                    "fails": "" if failing.empty else failing.model.iloc[0],
                    "parameters": nearest.parameters + slope * (card - nearest.peak / GIB),
                    "beyond": beyond,
                }
            )
    return pd.DataFrame(table, columns=["group", "qwz", "card", "fits", "fails", "parameters", "beyond"])
