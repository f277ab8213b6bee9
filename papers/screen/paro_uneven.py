"""Prints PaRO beyond its paper: HO-Ring's figure, a slow node, nodes of different sizes, larger models."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pandas as pd
from rich.console import Console

from streamrace.studies.table import Column, Table


def show_rings(console: Console, frame: pd.DataFrame) -> None:
    """Print HO-Ring against the paper's figure, and the bandwidth that the flat ring would need."""
    cells = [
        [f"{row.ranks}", row.flat_s * 1e3, row.ho_ring_s * 1e3, f"{row.less:.1%}", f"{row.error:+.0%}",
         f"{row.needs_gbit:.0f}", f"{row.needs_flows:.1f}"]
        for row in _rows(frame)
    ]  # fmt: skip
    columns = [
        Column("GPUs", right=True), Column("flat", "{:.1f} ms"), Column("HO-Ring", "{:.1f} ms"),
        *(Column(name, right=True) for name in ("less", "error", "equal at", "flows")),
    ]  # fmt: skip
    console.print(Table("HO-Ring: all-gather of 1 GB", columns, cells))
    row = frame.iloc[0]
    console.print(
        f"The paper saves {row.theirs:.1%} ({row.low:.1%} to {row.high:.1%}). Ours would save as much where the "
        f"flat ring has {frame.needs_gbit.min():.0f} to {frame.needs_gbit.max():.0f} Gbit/s of each node, "
        f"{frame.needs_flows.min():.1f} to {frame.needs_flows.max():.1f} flows (equal at): NCCL lays several rings "
        "over several cards.",
        highlight=False,
    )


def show_slow_node(console: Console, frame: pd.DataFrame) -> None:
    """Print a step where one node has less network than the others."""
    cells = [[row.strategy, f"{row.share:g}", row.step_s, row.slower, row.gain, row.closed] for row in _rows(frame)]
    columns = [
        "", Column("one node has", right=True), Column("s a step", ".2f"), Column("times as long", ".2f"),
        Column("as fast as ZeRO-3", ".2f"), Column("serial", ".2f"),
    ]  # fmt: skip
    console.print(Table("One node with less network than the others: 7B, 32 GPUs", columns, cells))


def show_sizes(console: Console, frame: pd.DataFrame) -> None:
    """Print nodes of several sizes, in closed form."""
    cells = [[row.strategy, row.step_s, row.gain] for row in _rows(frame)]
    columns = ["", Column("s a step", ".2f"), Column("as fast as ZeRO-3", ".2f")]
    row = frame.iloc[0]
    console.print(Table(f"Nodes of {row.sizes} GPUs, 7B, groups of 4: closed form, nothing hidden", columns, cells))
    console.print(f"Our engine refuses them: {row.refused}.", highlight=False)


def show_large(console: Console, frame: pd.DataFrame) -> None:
    """Print the strategies whose states fit 80 GB, the fastest first."""
    cells = []
    for (model, ranks), found in frame.groupby(["model", "ranks"], sort=False):
        fits = found[found.fits].sort_values("step_s")
        named = ", ".join(f"{row.scheme} ({row.states_gb:.0f} GB)" for row in _rows(fits))
        ratio = fits.step_s.max() / fits.step_s.min()
        cells.append([str(model), str(ranks), named or "none", f"{ratio:.1f}"])
    columns = ["model", Column("GPUs", right=True), "states that fit 80 GB, fastest first", Column("x", right=True)]
    console.print(
        Table("Larger models, closed form, nothing hidden (x: the slowest takes as many times)", columns, cells)
    )


SHOWN: dict[str, Callable[[Console, pd.DataFrame], None]] = {
    "rings": show_rings,
    "slow-node": show_slow_node,
    "sizes": show_sizes,
    "large": show_large,
}


def _rows(frame: pd.DataFrame) -> list[Any]:
    """Return the rows untyped: their columns are dynamic."""
    return list(frame.itertuples())
