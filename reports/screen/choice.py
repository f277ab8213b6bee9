"""Prints the choice of a sharding strategy: a sentence that names the fastest, and the table behind it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pandas as pd
from rich.console import Console

from streamrace.studies.choose import GIB, KINDS, ShardingQuestion
from streamrace.studies.table import Cell, Column, Table
from streamrace.trace import wording

_NAMED = 3  # of strategies that are equally fast
_HEADS = (
    "strategy", "para-\nmeters", "copy", "grad-\nients", "state", "total\nGiB", "over",
    "com-\nmuni-\ncate", "com-\npute", "step\ns", "tokens/s", "times\nZeRO-3",
)  # fmt: skip


def show(console: Console, frame: pd.DataFrame, query: ShardingQuestion) -> None:
    """Print the question, the answer, the table, and what is not counted."""
    console.print(title(query), highlight=False, markup=False)
    console.print(sentence(frame, query), style="bold green", highlight=False)
    console.print(_table(frame))
    activations = (
        f"{_gib(query.activations)} are kept free for activations; not counted are"
        if query.activations
        else "not counted are activations (--activations keeps room for them),"
    )
    console.print(
        f"Memory: one GPU's, in GiB, of model states alone; {activations} gathered parameters and "
        "buffers. Time: in seconds, without latency; the longer of the two is the step's.",
        highlight=False,
    )


def json_text(frame: pd.DataFrame, query: ShardingQuestion) -> str:
    """Return the question, the answer, and the table in bytes and seconds, as JSON."""
    rows = json.loads(frame.to_json(orient="records"))
    answer = {"question": title(query), "sentence": sentence(frame, query), "strategies": rows}
    return json.dumps({"format": "stream-race-choice", "version": 1, **answer}, indent=2) + "\n"


def title(query: ShardingQuestion) -> str:
    """Return the question: model, cluster, memory and batch."""
    size, cluster = query.size, query.cluster
    part = size.trained / size.parameters
    trained = "all trained" if part == 1 else f"{100 * part:.3g} % of them trained"
    groups = f"groups of {cluster.group}" if cluster.groups > 1 else "one group"
    gpus = "one GPU" if cluster.ranks == 1 else f"{cluster.ranks} GPUs"
    batches = wording.count(query.accumulation, "micro-batch", "micro-batches")
    links = ", ".join(f"{rate:.4g} {where}" for where, rate in query.links.items())
    return (
        f"{query.model}: {size.parameters / 1e9:.4g} billion parameters, {trained}, {query.precision}; {gpus} of "
        f"{_gib(query.memory)}, {cluster.gpus} on a node, in {groups} ({query.hardware}"
        f"{'; Gbit/s of a GPU: ' if links else ''}{links}); {batches} of "
        f"{query.micro_batch} x {query.sequence} tokens a step"
    )


def sentence(frame: pd.DataFrame, query: ShardingQuestion) -> str:
    """Return the fastest strategy that fits, why, and which would be faster with more memory."""
    best, fitting = frame[frame.best], int(frame.fits.sum())
    first, several = best.iloc[0], len(best) > 1
    memory = _gib(query.memory) + (f" with {_gib(query.activations)} for activations" if query.activations else "")
    if fitting == 1:
        among = f"is the only one that fits {memory}"
    else:
        among = f"{'are the fastest, equally,' if several else 'is the fastest'} of the {fitting} that fit {memory}"
    against = "" if "GGG" in set(best.strategy) else f", {first.relative:.2f} times as fast as ZeRO-3"
    why = _why_all(best) if several else _why(first, one_group=query.cluster.groups == 1)
    text = f"{_names(list(best.title))} {among}: {_seconds(first.step_s)} a step{against}, as {why}"
    faster = frame[~frame.fits & (frame.step_s < first.step_s * (1 - 1e-9))]  # the last bits are rounding
    if faster.empty:
        return f"{text}."
    # Of the faster strategies, the one that needs least memory.
    alternative = faster[faster.step_s <= faster.step_s.min() * (1 + 1e-9)].sort_values("total", kind="stable").iloc[0]
    return (
        f"{text}; {alternative.title} would take {_seconds(alternative.step_s)}, but needs {_gib(alternative.total)}."
    )


def _why(row: Any, *, one_group: bool) -> str:
    crossing = (
        ""
        if one_group
        else "nothing crosses between groups but at the end of a step, and "
        if not row.often
        else f"in every micro-batch {'' if ' and ' in row.often else 'only '}{row.often} cross between groups, and "
    )
    communicating, computing = _seconds(row.communication_s), _seconds(row.computation_s)
    if row.computation_s >= row.communication_s:
        return f"{crossing}its {communicating} of communication hide behind {computing} of computing"
    return f"{crossing}it waits for {communicating} of communication, which {computing} of computing do not hide"


def _why_all(best: pd.DataFrame) -> str:
    first, least = best.iloc[0], best.sort_values("total", kind="stable").iloc[0]
    if first.computation_s >= first.communication_s:
        common = "all of them compute for longer than they communicate"
    else:
        common = "all of them wait for as much communication"
    return (
        f"{common}; {first.title} communicates least ({_seconds(first.communication_s)})"
        f"{' and' if least.title == first.title else f', {least.title}'} needs least memory ({_gib(least.total)})"
    )


def _names(titles: Sequence[str]) -> str:
    return wording.few(titles, _NAMED) if len(titles) > _NAMED else wording.every(titles)


def _table(frame: pd.DataFrame) -> Table:
    rows = []
    for row in frame.to_dict("records"):
        cells = [
            _short(row["title"]),
            *(_figure(row[kind] / GIB) if row[kind] else "" for kind in KINDS),
            _figure(row["total"] / GIB),
            _figure(row["over"] / GIB) if row["over"] else "fits",
            *(_figure(row[name]) for name in ("communication_s", "computation_s", "step_s")),
            f"{row['tokens_per_s']:,.0f}" if row["tokens_per_s"] < 1e6 else f"{row['tokens_per_s'] / 1e6:.2f} M",
            f"{row['relative']:.2f}",
        ]
        tone = "good" if row["best"] else "" if row["fits"] else "soft"
        rows.append([Cell(text, tone) for text in cells])
    return Table("", [_HEADS[0], *(Column(head, right=True) for head in _HEADS[1:])], rows)


def _short(title: str) -> str:
    """Return the letters, with a name that adds to them: ``GGG (ZeRO-3)`` is GGG ZeRO-3, ``IIG (PaRO-IIG)`` IIG."""
    letters, _, name = title.partition(" ")
    name = name.strip("()")
    return letters if name.endswith(letters) else f"{letters} {name}".strip()


def _figure(value: float) -> str:
    """Format three digits, or all before the point."""
    digits = 0 if value >= 100 else 1 if value >= 10 else 2 if value >= 1 else 3
    return f"{value:.{digits}f}"


def _seconds(value: float) -> str:
    return f"{_figure(value)} s"


def _gib(nbytes: float) -> str:
    text = f"{nbytes / GIB:.1f}"
    return f"{text.removesuffix('.0')} GiB"
