"""Prints PaRO's figures against ours: speed-ups, scaling, and the network that would explain them."""

from __future__ import annotations

import math
from typing import Any

import pandas as pd
from rich.console import Console

from papers.studies.paro_paper import ACCUMULATION, MICRO_BATCH, ONE_FLOW, RANGE, RATES, SEQUENCE, TOGETHER
from streamrace.studies.table import Cell, Column, Table

NEAR = 0.25  # relative error
_CARD = 80  # GiB of a GPU


def show_gains(console: Console, frame: pd.DataFrame) -> None:
    """Print the table of speed-ups, and its summary."""
    ranks = ", ".join(f"{count} GPUs" for count in sorted(set(frame.ranks)))
    console.print(
        f"How many times as fast, PaRO (arXiv 2310.06003) and dry runs: {ranks}, {ACCUMULATION} micro-batches of "
        f"{MICRO_BATCH} x {SEQUENCE} tokens",
        highlight=False,
    )
    heads = (
        "by the\nfacts", "\nerror", "one\nflow", "\nerror", "all\nlinks", "\nerror", "equal\nat", "serial:\none\nflow",
        "\nall\nlinks", "\nequal\nat",
    )  # fmt: skip
    names = (
        "facts", "facts_error", "ours", "error", "together", "together_error", "rate", "serial", "together_serial",
        "serial_rate",
    )  # fmt: skip
    rows = [[name(row), row.theirs, *(_value(row, one) for one in names)] for row in _rows(frame)]
    table = Table("", ["", Column("theirs", ".2f"), *(Column(head, ".2f") for head in heads)], rows)
    console.print(table)
    console.print(
        f"One flow: a ring over all ranks passes each node's network at {ONE_FLOW:g} Gbit/s; all links: at "
        f"{TOGETHER:g}. Equal at: the Gbit/s at which ours is theirs (between {RATES[0]:g} and {RATES[-1]:g}). Serial: "
        "the closed form where nothing hides communication.",
        highlight=False,
    )
    for sentence in sentences(frame):
        console.print(sentence, highlight=False)


def show_scaling(console: Console, frame: pd.DataFrame) -> None:
    """Print throughput per GPU, with more GPUs."""
    counts = sorted(set(frame.ranks))
    console.print(
        f"Throughput per GPU, relative to {counts[0]} GPUs (7B, all trained, as much on each GPU)", highlight=False
    )
    rows = []
    for strategy, found in frame.groupby("strategy", sort=False):
        last = found.iloc[-1]
        figures = [_value(last, one) for one in ("theirs", "error", "together", "together_error", "closed")]
        rows.append([str(strategy), *found.ours, *figures])
    heads = (*map(str, counts), "theirs", "error", "all\nlinks", "error", "serial")
    table = Table("", ["", *(Column(head, ".2f") for head in heads)], rows)
    console.print(table)
    console.print(
        "Here more GPUs add hops to a ring, and little to (n-1)/n of the bytes: each node keeps its links. What a "
        "network loses when more nodes share its switches is in no profile. A global batch that stays the same, fewer "
        "micro-batches on more GPUs, would cost IIG and NIG more than ZeRO-3, and not the other way round.",
        highlight=False,
    )
    for row in _rows(frame[frame.theirs.notna() & frame.share.notna()]):
        calibrated = (
            ""
            if math.isnan(row.calibrated)
            else (
                f"; with {row.others_share:.2f}, as the others need, {row.calibrated:.2f} ({row.calibrated_error:+.0%})"
            )
        )
        console.print(
            f"{row.strategy}: {row.theirs:.2f} would come out if nodes had {row.share:.2f} of their network with "
            f"{row.ranks} GPUs{calibrated}.",
            highlight=False,
        )


def sentences(frame: pd.DataFrame) -> list[str]:
    """Summarise the speed-ups."""
    told = frame[frame.theirs.notna()]
    found = []
    if len(told):
        near = [int((told[column].abs() <= NEAR).sum()) for column in ("error", "together_error")]
        closer = int((told.together_error.abs() < told.error.abs()).sum())
        found.append(
            f"Within {NEAR:.0%} of theirs: {near[0]} of {len(told)} with one flow, {near[1]} with all links; nearer "
            f"with all links: {closer} of {len(told)}."
        )
        rates = told.rate.dropna()
        if len(rates):
            found.append(
                f"{len(rates)} come out at {rates.min():.0f} to {rates.max():.0f} Gbit/s, the share of "
                f"{rates.min() / ONE_FLOW:.1f} to {rates.max() / ONE_FLOW:.1f} flows."
            )
        known = told[told.calibrated.notna()]
        if len(known):
            near_too = int((known.calibrated_error.abs() <= NEAR).sum())
            found.append(
                f"At what the other rows need (their median, {known.others_rate.min():.0f} to "
                f"{known.others_rate.max():.0f} Gbit/s) {near_too} of {len(known)} are within {NEAR:.0%}, the mean "
                f"absolute error is {known.calibrated_error.abs().mean():.0%}: "
                + ", ".join(f"{row.calibrated:.2f} ({row.calibrated_error:+.0%})" for row in _rows(known))
                + "."
            )
        found += [
            f"{name(row)} comes out at no rate, as computing hides nearly all that {row.against} sends here; where "
            f"nothing is hidden it does, at {row.serial_rate:.0f} Gbit/s (DeepSpeed's ZeRO-2 overlaps only if asked)."
            for row in _rows(told)
            if math.isnan(row.rate) and not math.isnan(row.serial_rate)
        ]
    least, most = frame[["ours", "together"]].min().min(), frame[["ours", "together"]].max().max()
    beyond = f", and have {told.theirs.max():.2f} themselves" if told.theirs.max() > RANGE[1] else ""
    found.append(
        f"All of ours: {least:.2f} to {most:.2f} times as fast; they claim {RANGE[0]} to {RANGE[1]:.2f}{beyond}."
    )
    large = sorted(
        {
            (f"{_model(row.model)} {row.trained} {strategy}", peak)
            for row in _rows(frame)
            for strategy, peak in ((row.strategy, row.peak_gib), (row.against, row.against_peak_gib))
            if peak > _CARD
        }
    )
    if large:
        found.append(
            f"More than {_CARD} GiB at the peak, as nothing is computed again here: "
            + ", ".join(f"{what} {peak:.0f}" for what, peak in large)
            + ". The paper must have saved memory there, as gradient checkpointing does, which computes more."
        )
    return found


def name(row: Any) -> str:
    """Return the name of a claim."""
    return f"{_model(row.model)} {row.trained} {row.strategy}:{row.against}"


def _rows(frame: pd.DataFrame) -> list[Any]:
    """Return the rows untyped: their columns are dynamic."""
    return list(frame.itertuples())


def _model(text: str) -> str:
    return text.rpartition("-")[2].upper()


def _value(row: Any, name: str) -> Any:
    """Format a figure for the tables: errors as coloured shares, rates as whole numbers."""
    value = getattr(row, name)
    if "error" in name and not math.isnan(value):
        return Cell(f"{value:+.0%}", "good" if abs(value) <= NEAR else "warn")
    if "rate" in name:
        return "-" if math.isnan(value) else f"{value:.0f}"
    return value
