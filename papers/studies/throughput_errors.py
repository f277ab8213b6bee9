"""Summarizes the errors of predicted step times: by group, with one figure of the other sources, and explained."""

from __future__ import annotations

import math
from typing import Any

import pandas as pd

from papers.studies import FACTS
from streamrace.device.hardware.facts import fact

OFF = 0.25  # relative error of a step time that has to be explained
NEAR = 0.10  # the same, within which a changed machine explains it
SIZES = ((0, "below 1"), (1, "1 to 5"), (5, "5 to 20"), (20, "20 and more"))
"""Billions of parameters, and what a group from there on is called."""


def calibrated(frame: pd.DataFrame) -> pd.DataFrame:
    """Add to the rows of :func:`papers.studies.throughput.study` the predictions with one figure of *other* sources.

    ``factor``: multiplies our step times. It gives the other sources' rows the least mean absolute error, each source
    with the same weight. NaN where there is no other source.
    """
    ratio = frame.theirs_s / frame.ours_s
    weight = 1 / frame.source_id.map(frame.source_id.value_counts())
    factors = {
        source: _best(ratio[frame.source_id != source], weight[frame.source_id != source])
        for source in frame.source_id.unique()
    }
    factor = frame.source_id.map(factors)
    seconds = frame.ours_s * factor
    return frame.assign(factor=factor, calibrated_s=seconds, calibrated_error=seconds / frame.theirs_s - 1)


def _best(ratio: pd.Series, weight: pd.Series) -> float:
    """Return the factor f with the least weighted mean of ``|f / ratio - 1|``: one of the ratios, as it is convex."""
    if ratio.empty:
        return math.nan
    means = [float(((factor / ratio - 1).abs() * weight).sum()) for factor in ratio]
    return float(ratio.iloc[means.index(min(means))])


def explained(frame: pd.DataFrame) -> pd.DataFrame:
    """Add to the rows of :func:`papers.studies.throughput.study` which single change would explain an error.

    ``needs_kernels``: how many times as long all computation would have to take. ``explained_by``: empty where the
    error is not above :data:`OFF`, or where nothing explains it. Kernels explain a row if that factor is plausible, and
    within :data:`NEAR` of the median of the factors of the source's other rows on the same GPU. The
    network explains it if the step is between ours and that at half the rate; the host, if it is between that of a
    host that costs nothing but launches and that of one twice as slow; both within :data:`NEAR`.
    """
    needs = (frame.theirs_s - frame.exposed_s - frame.idle_s) / frame.compute_s
    frame = frame.assign(needs_kernels=needs)
    return frame.assign(explained_by=[_explained(frame, index) for index in frame.index])


def _explained(frame: pd.DataFrame, index: Any) -> str:
    row = frame.loc[index]
    if abs(row.error) <= OFF:
        return ""
    like = frame[(frame.source_id == row.source_id) & (frame.gpu == row.gpu)].drop(index=index)
    others = float(like.needs_kernels.median())
    low, high = fact("unknowns.kernels", FACTS)
    if low <= row.needs_kernels <= high and (math.isnan(others) or abs(row.needs_kernels / others - 1) <= NEAR):
        beside = "" if math.isnan(others) else f" (the source's other rows: {others:.2f})"
        return f"kernels: {row.needs_kernels:.2f} times as long{beside}"
    for cause, ends in (
        ("network: up to half its rate", (row.ours_s, row.half_network_s)),
        ("host: none to twice the price", (row.free_host_s, row.twice_host_s)),
    ):
        if min(ends) * (1 - NEAR) <= row.theirs_s <= max(ends) * (1 + NEAR):
            return cause
    return ""


def groups(frame: pd.DataFrame) -> dict[str, pd.Series]:
    """Return, by title, a name for each row: what its errors are grouped by."""
    most = max(at for at, _ in SIZES)
    size = frame.parameters / 1e9
    named = pd.cut(size, [*(at for at, _ in SIZES), max(most, size.max()) + 1], labels=[name for _, name in SIZES])
    gpus = pd.cut(frame.gpus, [0, 8, 64, math.inf], labels=["4 and 8", "16 to 64", "96 to 512"])
    return {
        "source": frame.source_id,
        "GPU": frame.gpu.str.extract(r"^(\w+)")[0],
        "parameters, billions": named.astype(str),
        "GPUs": gpus.astype(str),
        "program": frame.program,
    }


def errors(frame: pd.DataFrame) -> pd.DataFrame:
    """Return a row for all rows, and one for each group: how many rows, and their absolute errors.

    Columns: ``by``, ``group``; ``rows``; ``mean``, ``median``, ``worst``; ``bias``, the mean of the signed errors;
    ``off``, rows with more than :data:`OFF`; ``unexplained``, those of them without an explanation; ``needs_kernels``,
    the median of :func:`explained`'s; ``calibrated_mean``, ``calibrated_median``.
    """
    found = [("", "all", frame)]
    for by, names in groups(frame).items():
        found += [(by, str(name), frame[names == name]) for name in names.unique()]
    return pd.DataFrame([{"by": by, "group": group, **_of(rows)} for by, group, rows in found])


def _of(rows: pd.DataFrame) -> dict[str, float]:
    size, with_figure = rows.error.abs(), rows.calibrated_error.abs()
    off = size > OFF
    return {
        "rows": len(rows),
        "mean": float(size.mean()),
        "median": float(size.median()),
        "worst": float(size.max()),
        "bias": float(rows.error.mean()),
        "off": int(off.sum()),
        "unexplained": int((off & (rows.explained_by.isna() | (rows.explained_by == ""))).sum()),
        "needs_kernels": float(rows.needs_kernels.median()),
        "calibrated_mean": float(with_figure.mean()),
        "calibrated_median": float(with_figure.median()),
    }
