"""The picture and the tables of :mod:`studies.placements` and :mod:`studies.sites`."""

from __future__ import annotations

from pathlib import Path, PurePath

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from rich.console import Console
from rich.table import Table
from rich.text import Text

from reports.data.frames import each

_FREE, _RACY, _TEXT = "#2f7fbf", "#cf5a3a", "#33373d"
_LEAST_MS, _LEAST_S = 0.01, 0.01
_VERDICTS = {"carries load": "red", "needed, did not show": "yellow", "redundant here": "green"}


def draw(frame: pd.DataFrame, path: Path) -> None:
    """A row of charts for each model and network: how much longer a step takes, and how long the host waits at the fix.

    Seconds of a whole step hardly differ, so the first chart has milliseconds above the fastest race-free one.
    """
    groups = list(frame.groupby(["model", "gbits"], sort=False))
    figure = Figure(figsize=(12, 0.6 + 3.0 * len(groups)), layout="constrained")
    axes = figure.subplots(len(groups), 2, squeeze=False, sharex="col", sharey="row")
    for (left, right), (key, rows) in zip(axes, groups, strict=True):
        model, gbits = key
        best = rows[rows.race_free].step_s.min() if rows.race_free.any() else rows.step_s.min()
        extra = ((rows.step_s - best) * 1e3).round(3)
        left.set_title(f"{model}, {gbits:g} Gbit/s: {best:.3f} s a step, and ms more", fontsize=10, loc="left")
        right.set_title("seconds a step that the host waits at the fix", fontsize=10, loc="left")
        _bars(left, rows, extra, "{:+,} ms", _LEAST_MS)
        _bars(right, rows, rows.waited_s, "{:,} s", _LEAST_S)
    extra = frame.groupby(["model", "gbits"]).step_s.agg(lambda steps: steps.max() - steps.min()) * 1e3
    axes[0][0].set_xlim(0, 8 * max(extra.max(), _LEAST_MS))
    axes[0][1].set_xlim(0, 8 * max(frame.waited_s.max(), _LEAST_S))
    handles = [
        axes[0][0].barh([0], [0], color=colour, label=label)
        for colour, label in ((_FREE, "race-free"), (_RACY, "a race is found"))
    ]
    figure.legend(handles=handles, loc="outside upper right", ncols=2, frameon=False, fontsize=10)
    figure.savefig(path, dpi=110, facecolor="white", metadata={"Software": None})


def _bars(axes: Axes, rows: pd.DataFrame, values: pd.Series[float], text: str, least: float) -> None:
    """``least``: below this the scale is linear."""
    colours = [_FREE if free else _RACY for free in rows.race_free]
    places = list(range(len(rows)))
    bars = axes.barh(places, values.tolist(), color=colours, height=0.7)
    axes.bar_label(bars, [text.format(_short(value)) for value in values], padding=3, fontsize=8, color=_TEXT)
    axes.set_yticks(places, rows.fix.tolist(), fontsize=9)
    for label, colour in zip(axes.get_yticklabels(), colours, strict=False):
        label.set_color(colour)  # a bar of no length has no colour; the right charts share the labels
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.set_xscale("symlog", linthresh=least)
    axes.tick_params(axis="x", labelsize=8, labelbottom=True)
    axes.grid(axis="x", alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)


def _short(value: float) -> float | int:
    """Three figures."""
    return round(value) if abs(value) >= 100 or not value else float(f"{value:.3g}")


def placements(console: Console, frame: pd.DataFrame) -> None:
    """A table for each model and network, and the lines that race."""
    for key, rows in frame.groupby(["model", "gbits"], sort=False):
        model, gbits = key
        table = Table(title=f"{model}, {gbits:g} Gbit/s between nodes", title_justify="left")
        for name in ("fix", "races", "step, s", "slower", "host blocked, s", "waits at the fix", "for, s"):
            table.add_column(name, justify="left" if name == "fix" else "right", no_wrap=name == "fix", overflow="fold")
        for one in each(rows):
            races = Text("none", "green") if one.race_free else Text(f"{one.races}, {one.shown} shown", "red")
            slower = f"{(one.slowdown - 1) * 100:+.3f} %"
            table.add_row(
                one.fix, races, f"{one.step_s:.4f}", slower, f"{one.host_blocked_s:.4f}",
                str(one.waits), f"{one.waited_s:.3f}",
            )  # fmt: skip
        console.print(table)
    for one in each(frame[~frame.race_free].drop_duplicates(["fix", "model"])):
        console.print(Text(f"{one.fix}, {one.model}: {one.pairs}", "red"))
        console.print(f"  {one.memory}; {one.example}", highlight=False)


def cheapest(console: Console, best: pd.DataFrame) -> None:
    """A line for each model and network."""
    for one in each(best):
        console.print(
            f"Cheapest race-free: {one.fix} for {one.model} at {one.gbits:g} Gbit/s ({one.where}: {one.what})",
            highlight=False,
        )


def sites(console: Console, frame: pd.DataFrame) -> None:
    """Stock DeepSpeed's synchronisations, each taken away alone."""
    table = Table(title="stock synchronisations, each taken away alone", title_justify="left")
    for name in ("operation", "place", "a step", "verdict", "the race found without it, or what happened"):
        table.add_column(name, justify="right" if name == "a step" else "left", overflow="fold")
    for one in each(frame):
        place = f"{PurePath(one.file).name}:{one.line} {one.function.rpartition('.')[2]}"
        shown = Text(one.verdict, _VERDICTS.get(one.verdict, "magenta"))
        pairs = one.pairs.split("; ") if one.pairs else []
        more = f" and {len(pairs) - 1} more" if len(pairs) > 1 else ""
        what = pairs[0].replace(" | ", ", ") + more if pairs and one.verdict != "breaks the run" else one.note
        table.add_row(one.operation, place, str(one.count), shown, what)
    console.print(table)
