"""Sweeps one model over networks and micro-batches: where the race shows, and where hpZ pays.

The work of each configuration and micro-batch is recorded once, and timed for each network
(:mod:`streamrace.studies.retiming`). The reviewers of arXiv 2407.01614 request this: "a sweep of the network from 1 to
100 Gbps with the bandwidth below or above which the sync matters".

The pinned DeepSpeed release runs with each fix and without one. Another release runs as released, in a process of its
own that imports it; its rows are appended (``streamrace sweep --deepspeed``).
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd

from streamrace.frameworks.deepspeed.fixes import Fix
from streamrace.frameworks.deepspeed.releases import PINNED
from streamrace.scenarios.job import Job
from streamrace.studies.dry_run import Rehearsed, rehearse
from streamrace.studies.process_pool import OnProgress, quiet, side_by_side
from streamrace.studies.retiming import Retimer

FIXES = (Fix.NONE, Fix.STREAM_SYNC, Fix.EVENT, Fix.DEVICE_SYNC)
NETWORKS = (1.0, 3.0, 6.0, 12.5, 25.0, 50.0, 100.0, 200.0, 400.0)
MICRO_BATCHES = (1, 2, 4, 8, 16, 32)
ZERO3 = "ZeRO-3"
PAYS = 1.05  # hpZ counts as paying while it is faster by this factor
UNFIXED, STOCK = f"hpZ {Fix.NONE}", f"hpZ {Fix.STREAM_SYNC}"
COLUMNS = {
    "configuration": "str", "network": "float64", "micro_batch": "int64", "step_s": "float64",
    "tokens_per_second": "float64", "tflops_per_gpu": "float64", "races": "int64", "pairs": "int64",
    "manifested": "int64", "slack_us": "float64", "harmful": "float64", "harmful_manifested": "float64",
    "harmful_slack_us": "float64", "memory_gib": "float64", "fits": "bool", "asking_us": "float64",
    "unexercised": "str",
}  # fmt: skip
"""Columns of the frame and their dtypes: see :func:`sweep`."""


@dataclass(frozen=True)
class Point:
    """A configuration that is recorded once."""

    configuration: str
    job: Job


def released(release: str) -> str:
    """Return the name of hpZ's configuration in a release other than the pinned one."""
    return f"hpZ {release}"


def points(job: Job, micro_batches: Sequence[int] = MICRO_BATCHES, fixes: Sequence[Fix] = FIXES) -> list[Point]:
    """List hpZ with each fix, and ZeRO-3 without hpZ, for each micro-batch; the longest runs first.

    ``job.hpz`` is the group size. Of a release other than the pinned one: only hpZ as released.
    """
    result = []
    for micro_batch in sorted(micro_batches, reverse=True):
        if job.deepspeed != PINNED:
            result.append(Point(released(job.deepspeed), _changed(job, micro_batch=micro_batch)))
            continue
        result += [Point(f"hpZ {fix}", _changed(job, micro_batch=micro_batch, fix=fix)) for fix in fixes]
        result.append(Point(ZERO3, _changed(job, micro_batch=micro_batch, hpz=1, fix=Fix.STREAM_SYNC)))
    return result


def sweep(
    job: Job,
    folder: Path,
    *,
    networks: Sequence[float] = NETWORKS,
    micro_batches: Sequence[int] = MICRO_BATCHES,
    fixes: Sequence[Fix] = FIXES,
    workers: int | None = None,
    progress: OnProgress = quiet,
) -> pd.DataFrame:
    """Return a row for each configuration, network (Gbit/s between nodes) and micro-batch.

    ``step_s``: seconds of an optimizer step; ``tokens_per_second``: of all GPUs; ``races``: number of races, whether
    they show or not; ``pairs``: their occurrences on rank 0 in the whole run, ``manifested`` of them in this timing;
    ``slack_us``: slack of the closest pair (below 0: reversed). ``harmful``: pairs whose other order reads another
    value (:mod:`streamrace.studies.harm`), ``harmful_manifested`` of them in this timing, ``harmful_slack_us`` as
    above. ``memory_gib``: peak per GPU. ``asking_us``: upper bound on the change of the step if queries are answered
    (:mod:`streamrace.studies.retiming`), as in a dry run of that row alone. ``unexercised``: features that were on in
    the run and never happened.

    Raises :class:`streamrace.scenarios.base.ScenarioError`, :class:`streamrace.device.ranks.cluster.RankFailed`.
    """
    todo = points(job, micro_batches, fixes)
    rows: list[dict[str, Any]] = []
    done = side_by_side(partial(rows_of, networks=tuple(networks), folder=folder), todo, workers=workers)
    for number, (point, point_rows) in enumerate(done, 1):
        rows += point_rows
        progress(number, len(todo), f"{point.configuration}, micro-batch {point.job.micro_batch}")
    return ordered(pd.DataFrame(rows, columns=list(COLUMNS)), [point.configuration for point in todo])


def ordered(frame: pd.DataFrame, configurations: Sequence[str]) -> pd.DataFrame:
    """Sort the rows by ``configurations`` (in the given order), micro-batch and network."""
    order = {configuration: at for at, configuration in enumerate(dict.fromkeys(configurations))}
    frame = frame.sort_values(
        ["configuration", "micro_batch", "network"],
        key=lambda column: column.map(order) if column.name == "configuration" else column,
    )
    return frame.reset_index(drop=True)


def matters_from(frame: pd.DataFrame, configuration: str) -> pd.Series[float]:
    """Compute, by micro-batch, the slowest network (Gbit/s) from which on a harmful pair is reversed.

    Between two networks of the sweep the slack is assumed linear in the logarithm of the bandwidth. 0 if a pair is
    reversed on all networks of the sweep, NaN if none is on the fastest.
    """
    thresholds = {}
    for micro_batch, group in frame[frame.configuration == configuration].groupby("micro_batch"):
        group = group.sort_values("network")
        hidden = [at for at, shown in enumerate(group.harmful_manifested > 0) if not shown]
        if not hidden:
            thresholds[micro_batch] = 0.0
        else:
            thresholds[micro_batch] = _crossing(list(group.network), list(group.harmful_slack_us), hidden[-1])
    return pd.Series(thresholds, name="gbit_per_s", dtype=float)


def _crossing(networks: Sequence[float], values: Sequence[float], index: int, level: float = 0.0) -> float:
    """Return the bandwidth between networks ``index`` and ``index`` + 1 at which the values cross ``level``; NaN for
    the last network.
    """
    import numpy as np

    if index + 1 == len(networks):
        return math.nan
    part = (values[index] - level) / (values[index] - values[index + 1])
    return float(np.exp(np.interp(part, [0, 1], np.log(networks[index : index + 2]))))


def rows_of(point: Point, *, networks: tuple[float, ...], folder: Path) -> list[dict[str, Any]]:
    """Return the rows of one configuration: see :func:`sweep`."""
    point_folder = folder / f"{point.configuration}-{point.job.micro_batch}".replace(" ", "-")
    rehearsed = rehearse(point.job, point_folder, answers=False, examples=None)
    retimer = Retimer(point_folder / "trace", rehearsed.races)
    rows = [_row(point, rehearsed, retimer, network) for network in networks]
    shutil.rmtree(point_folder)
    return rows


def _row(point: Point, rehearsed: Rehearsed, retimer: Retimer, network: float) -> dict[str, Any]:
    timed = retimer.at(network=network)
    as_timed = replace(rehearsed, step=replace(rehearsed.step, time=timed.step_ns))
    slack = timed.slack_ns
    return {
        "configuration": point.configuration,
        "network": network,
        "micro_batch": point.job.micro_batch,
        "step_s": as_timed.step_s,
        "tokens_per_second": as_timed.tokens_per_second,
        "tflops_per_gpu": as_timed.tflops,
        "races": len(timed.races),
        "pairs": sum(race.occurrences for race in timed.races),
        "manifested": timed.manifested,
        "slack_us": None if slack is None else slack / 1000,
        "harmful": len(timed.harmful),
        "harmful_manifested": sum(pair.harms for pair in timed.harmful),
        "harmful_slack_us": None if timed.harmful_slack_ns is None else timed.harmful_slack_ns / 1000,
        "memory_gib": rehearsed.memory.peak / (1 << 30),
        "fits": rehearsed.fits,
        "asking_us": timed.asking_ns / 1000,
        "unexercised": "; ".join(rehearsed.unexercised),
    }


def query_share(frame: pd.DataFrame) -> float:
    """Return the largest part of a step, over all rows, that unanswered queries can account for."""
    return float((frame.asking_us / 1e6 / frame.step_s).max())


def gain(frame: pd.DataFrame, configuration: str = STOCK) -> pd.DataFrame:
    """Return the speed of hpZ as a multiple of ZeRO-3's without hpZ, by micro-batch (rows) and network (columns)."""
    times = frame.pivot_table(index="micro_batch", columns=["configuration", "network"], values="step_s")
    return pd.DataFrame(times[ZERO3] / times[configuration])


def stops_paying(frame: pd.DataFrame, configuration: str = STOCK) -> pd.Series[float]:
    """Compute, by micro-batch, the bandwidth (Gbit/s) from which on hpZ is faster by less than :data:`PAYS`.

    Between two networks of the sweep the gain is assumed linear in the logarithm of the bandwidth. NaN if hpZ pays up
    to the fastest network, 0 if nowhere.
    """
    thresholds = {}
    for micro_batch, row in gain(frame, configuration).iterrows():
        paying = [at for at, value in enumerate(row) if value >= PAYS]
        thresholds[micro_batch] = _crossing(list(row.index), list(row), paying[-1], PAYS) if paying else 0.0
    return pd.Series(thresholds, name="gbit_per_s", dtype=float)


def _changed(job: Job, **fields: Any) -> Job:
    return Job(**{**job.model_dump(), **fields})
