"""Prints the answers to the reviewers as tables."""

from __future__ import annotations

from typing import Any

import pandas as pd
from rich.console import Console

from streamrace.studies.table import Cell, Column, Table


def validation(console: Console, frame: pd.DataFrame) -> None:
    """Print a row for each evaluation, a column for each configuration."""
    names = list(dict.fromkeys(frame.configuration))
    held_out: Any = frame.pivot(index="step", columns="configuration", values="validation_loss")[names]
    rows = [
        [step, *(Cell("nan", "bad") if pd.isna(value) else f"{value:.4f}" for value in held_out.loc[step])]
        for step in held_out[held_out[names[0]].notna()].index
    ]
    columns = [Column("after step", "d"), *(Column(name, right=True) for name in names)]
    console.print(Table("Loss on the held-out split, live", columns, rows))
    for name, found in frame.groupby("configuration", sort=False):
        differs = found[~found.equal]
        if name != names[0]:
            what = "to the bit in every step" if differs.empty else f"until step {differs.step.min()}, where it differs"
            console.print(f"{name}: the losses of {names[0]} {what}", highlight=False)


def pareto(console: Console, frame: pd.DataFrame) -> None:
    """Print for each case the undominated ways to shard, by each cost."""
    costs = {
        "sent": "by bytes that a GPU sends",
        "crossing": "by bytes that leave a node",
        "communication_s": "by time of communication",
    }
    rows = [
        [f"{model}, {trained}", *(", ".join(found[found[f"front_{cost}"]].strategy) for cost in costs)]
        for (model, trained), found in frame.groupby(["model", "trained"], sort=False)
    ]
    console.print(Table("On the Pareto front with a GPU's memory", ["model, trained", *costs.values()], rows))
    above = (frame.sent / frame.least_sent).groupby(frame.strategy).max()
    console.print(
        f"Least that may be sent with the same memory: reached by {', '.join(above[above < 1 + 1e-9].index)} in every "
        "case, beaten by none.",
        highlight=False,
    )


def failure(console: Console, frame: pd.DataFrame, events: pd.DataFrame) -> None:
    """Print a row for each case and strategy, at Llama 3's failure rate; and the agreement of both computations."""
    rows = [
        [
            f"{row['model']}, {row['ranks']:,}",
            f"{row['strategy']}, {row['group']}",
            row["between_h"],
            row["best_s"] / 60,
            row["recovery_s"] / 60,
            *(100 * row[name] for name in ("lost_best", "lost_1h", "lost_3h")),
        ]
        for row in frame[frame.rate == frame.rate.iloc[0]].to_dict("records")
    ]
    columns = [
        "model, GPUs", "strategy, group", Column("h between", ".1f"),
        Column("best, min", ".1f"), Column("recovery, min", ".1f"), Column("lost", ".2f"), Column("at 1 h", ".2f"),
        Column("at 3 h", ".2f"),
    ]  # fmt: skip
    console.print(Table("What interruptions cost, % of the throughput, at Llama 3's rate of them", columns, rows))
    console.print(
        f"Event by event the closed form comes out within {events.deviation.abs().max():.1f} standard errors in all "
        f"{len(events)} cases.",
        highlight=False,
    )


def batches(console: Console, gained: pd.DataFrame, crossings: pd.DataFrame) -> None:
    """Print hpZ's speed-up, and the number of GPUs from which on it is faster."""
    networks = sorted(set(gained.network))
    for (model, card), found in gained.groupby(["model", "card"], sort=False):
        table: Any = found.pivot(index="ranks", columns="network", values="gain")
        rows = [
            [
                one,
                "{zero3_batch} / {hpz_batch}".format(**found[found.ranks == one].iloc[0]),
                *(
                    "neither" if pd.isna(gain) else Cell("no room", "bad") if gain == 0 else f"{gain:.2f}"
                    for gain in table.loc[one, networks]
                ),
            ]
            for one in table.index
        ]
        mine = crossings[(crossings.model == model) & (crossings.card == card)].set_index("network").pays_from
        from_on = ", ".join(f"{one:g}: {'none' if pd.isna(mine[one]) else f'{mine[one]:.0f}'}" for one in networks)
        columns = [
            Column("GPUs", "d"), Column("micro-batch", right=True),
            *(Column(f"{one:g}", right=True) for one in networks),
        ]  # fmt: skip
        title = f"{model}, {card} GiB: times as fast as ZeRO-3, each at its largest micro-batch, by Gbit/s"
        console.print(Table(title, columns, rows, note=f"hpZ is 5 % faster from so many GPUs on, by Gbit/s: {from_on}"))
