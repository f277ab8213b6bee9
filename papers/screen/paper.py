"""Prints the papers' figures against ours: rows with errors, unknowns that would explain them, hpZ's gains."""

from __future__ import annotations

import math
from typing import Any

import pandas as pd
from rich.console import Console

from papers.studies.paper import CLAIM, OFF
from papers.studies.unknowns import EXPLAINED
from streamrace.studies.table import Cell, Column, Table

_QUANTITIES = {"seconds": "s a step", "tflops": "TFLOPs", "samples": "samples/s"}


def show_rows(console: Console, frame: pd.DataFrame) -> None:
    """Print each row that reports a step time, by cluster, and the mean absolute errors at the end."""
    for cluster, found in frame.groupby("cluster", sort=False):
        cells = [
            [
                row.model,
                f"{row.network:g}",
                row.setting,
                f"{row.theirs:g} / {row.ours:.3g} {_QUANTITIES[row.quantity]}",
                _error(row.error),
                "-" if math.isnan(row.calibrated_error) else _error(row.calibrated_error),
            ]
            for row in _rows(found)
        ]
        columns = [
            "model",
            "Gbit/s",
            "",
            "theirs / ours",
            Column("error", right=True),
            Column("one figure", right=True),
        ]
        console.print(Table(str(cluster), columns, cells))
        for sentence in cluster_sentences(found):
            console.print(sentence, highlight=False)
    for sentence in sentences(frame):
        console.print(sentence, highlight=False)


def cluster_sentences(frame: pd.DataFrame) -> list[str]:
    """Return, for the rows of one cluster, their mean errors, and the rows where ours is within the reported range."""
    told = [f"Mean absolute error of step time: {frame.error.abs().mean():.1%} from the facts alone"]
    known = frame[frame.calibrated_error.notna()]
    if len(known):
        told.append(f"{known.calibrated_error.abs().mean():.1%} with one figure of the other rows ({known.by.iloc[0]})")
    found = [", ".join(told) + "."]
    found += [
        f"{row.model}, {row.setting}: {row.ours_s:.1f} s is within what they report."
        for row in _rows(frame)
        if row.in_range
    ]
    return found


def sentences(frame: pd.DataFrame) -> list[str]:
    """Summarise all rows."""
    one = frame.calibrated_error.where(frame.calibrated_error.notna(), frame.error)
    off, far = frame[frame.error.abs() > EXPLAINED], frame[frame.error.abs() > OFF]
    found = [
        f"All {len(frame)} rows: {frame.error.abs().mean():.1%} from the facts alone, {one.abs().mean():.1%} with one "
        "figure for each cluster, taken from its other rows (from the facts where there are none).",
        f"Off by more than {EXPLAINED:.0%}: {len(off)}, of which {int((off.explained_by != '').sum())} would be "
        f"explained by one plausible figure, or by two; by more than {OFF:.0%}: {len(far)}, of which "
        f"{int((far.explained_by != '').sum())}.",
    ]
    found += [
        f"Not explained: {row.model}, {row.setting}, {row.network:g} Gbit/s ({row.error:+.0%})."
        for row in _rows(off[off.explained_by == ""])
    ]
    return found


def show_candidates(console: Console, frame: pd.DataFrame, all_rows: pd.DataFrame) -> None:
    """Print, by cluster, the value that each unknown would need; and for each row that is off, its explanation."""
    for cluster, found in frame.groupby("cluster", sort=False):
        cells = [
            [
                row.unknown,
                f"{row.explained} / {row.plausible}",
                *(_figure(row.least), _figure(row.median), _figure(row.most)),
                f"{row.low:g} to {row.high:g}",
                "-" if math.isnan(row.error) else _error(row.error, sign=""),
            ]
            for row in _rows(found)
        ]
        columns = [
            "", Column("of rows", right=True), Column("least", right=True), Column("median", right=True),
            Column("most", right=True), Column("plausible", right=True), Column("error", right=True),
        ]  # fmt: skip
        title = f"{cluster}: what one figure alone would have to be, {found.rows.iloc[0]} rows"
        console.print(Table(title, columns, cells))
    console.print(
        "Of rows: how many come out at some value, and at a plausible one. Error: mean absolute, each row predicted "
        "with the value that does best for the others.",
        highlight=False,
    )
    off = all_rows[all_rows.explained_by != ""]
    cells = [
        [row.model, f"{row.network:g}", row.setting, Cell(f"{row.error:+.0%}", "warn"),
         "; ".join(filter(None, (row.explained_by, row.also))),
         "; ".join(_figure(one) for one in (row.needs, row.needs_also) if not math.isnan(one)),
         "-" if math.isnan(row.fits_others) else f"{row.fits_others:+.0%}"]
        for row in _rows(off)
    ]  # fmt: skip
    columns = [
        "model", "Gbit/s", "", Column("error", right=True), "explained by", Column("at", right=True),
        Column("as others", right=True),
    ]  # fmt: skip
    if cells:
        console.print(Table("Rows that are off, and the figure that explains each, or the two", columns, cells))


def show_gains(console: Console, frame: pd.DataFrame) -> None:
    """Print hpZ's gain on the paper's cluster, and where it reaches the 98 % of the abstract."""
    for model, found in frame.groupby("model", sort=False):
        cells = []
        for batch, those in found.groupby("micro_batch", sort=False):
            last = those.iloc[0]
            cells.append(
                [
                    str(batch),
                    *(f"{row.gain:.2f}" for row in _rows(those)),
                    "never" if math.isnan(last.claimed_at) else f"{last.claimed_at:.1f}",
                    Cell(f"{last.peak_gib:.0f}", "" if last.fits else "bad"),
                    Cell(f"{last.zero3_peak_gib:.0f}", "" if last.zero3_fits else "bad"),
                ]
            )
        columns = [
            Column("micro-batch", right=True), *(Column(f"s = {s}", right=True) for s in found.accumulation.unique()),
            Column(f"{CLAIM:.2f} at s", right=True), Column("hpZ GiB", right=True), Column("ZeRO-3 GiB", right=True),
        ]  # fmt: skip
        console.print(Table(f"{model}: times as fast with hpZ as without, by accumulation s", columns, cells))
    for sentence in gain_sentences(frame):
        console.print(sentence, highlight=False)


def gain_sentences(frame: pd.DataFrame) -> list[str]:
    """Return where the claim is reached, and which models do not fit the cards."""
    found = []
    for model, those in frame.groupby("model", sort=False):
        fitting = those[those.fits & those.zero3_fits]
        most = max(_rows(fitting), key=lambda row: row.gain, default=None)
        reached = fitting[fitting.claimed_at.notna()].drop_duplicates("micro_batch")
        if most is None:
            found.append(
                f"{model} does not fit 80 GiB with hpZ here (at the least {those.peak_gib.min():.0f} GiB; without it "
                f"{those.zero3_peak_gib.min():.0f}): the paper must have saved memory that it does not tell of."
            )
        elif len(reached):
            where = ", ".join(f"{row.claimed_at:.1f} (micro-batch {row.micro_batch})" for row in _rows(reached))
            found.append(f"{model}: {CLAIM - 1:.0%} more come out at an accumulation of {where}.")
        else:
            found.append(
                f"{model}: {CLAIM - 1:.0%} more do not come out where it fits; the most is {most.gain - 1:.0%}, at "
                f"micro-batch {most.micro_batch} and accumulation {most.accumulation}."
            )
    return found


def _figure(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.3g}"


def _error(value: float, sign: str = "+") -> Cell:
    return Cell(f"{value:{sign}.0%}", "good" if abs(value) <= EXPLAINED else "warn" if abs(value) <= OFF else "bad")


def _rows(frame: pd.DataFrame) -> list[Any]:
    """Return the rows untyped: their columns are dynamic."""
    return list(frame.itertuples())
