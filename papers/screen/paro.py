"""Prints PaRO's strategies, trained live, against DDP and the formulas."""

from __future__ import annotations

from typing import Any

import pandas as pd
from rich.console import Console

from papers.studies.paro import FIGURES, differs
from streamrace.studies.table import Cell, Column, Table

_HEADS = ("", "loss\ndiffers\nby", "para-\nmeters", "grad-\nients", "state", "sent\nwithin", "sent\nbetween", "step\ns")


def show(console: Console, frame: pd.DataFrame, *, title: str, reference: str) -> None:
    """Print the table, its legend, and any errors. ``reference``: baseline of the losses."""
    console.print(title, highlight=False, markup=False)
    console.print(_table(frame))
    console.print(
        f"Losses: the largest difference from {reference}, of all ranks and micro-batches; before the first step there "
        "may be none, later sums in another order round otherwise. Bytes: of one GPU, kept by kind, and sent in a step "
        "in rings within a node and in rings over several. First line: counted in the traces; second: PaRO's formulas.",
        highlight=False,
    )
    console.print(sentence(frame), style="bold red" if _wrong(frame) else "bold green")


def sentence(frame: pd.DataFrame) -> str:
    """Summarise whether all strategies are as the formulas say."""
    wrong = _wrong(frame)
    if not wrong:
        return f"All {len(frame)} are as the formulas say, and none has a race."
    told = []
    for name, (figures, races) in wrong.items():
        parts = ["differs in " + ", ".join(_WORDS.get(one, one) for one in figures)] if figures else []
        parts += [f"has {races} race{'s' if races > 1 else ''}"] if races else []
        told.append(f"{name} {' and '.join(parts)}")
    return f"{len(wrong)} of {len(frame)} are wrong (!). {'; '.join(told)}."


def _wrong(frame: pd.DataFrame) -> dict[str, tuple[Any, int]]:
    """Return, by strategy, the figures that differ, and the number of races."""
    return {row.strategy: (differs(row), row.races) for row in _rows(frame) if differs(row) or row.races}


_WORDS = {"within": "bytes sent within nodes", "between": "bytes sent between nodes", "loss": "its first losses"}


def _table(frame: pd.DataFrame) -> Table:
    rows = []
    for row in _rows(frame):
        wrong = differs(row)
        loss = f"{row.loss_difference:.1e}" if row.loss_difference else "0"
        figures = [(f"{getattr(row, name):,.0f}", name in wrong, getattr(row, f"{name}_formula")) for name in FIGURES]
        rows.append(
            [
                Cell(row.strategy, below="formula"),
                _marked(loss, "loss" in wrong),
                *(_marked(text, off, f"{formula:,.0f}") for text, off, formula in figures),
                row.step_ns / 1e9,
                _marked(str(row.races), row.races > 0),
            ]
        )
    names = [Column(head, right=True) for head in _HEADS[1:-1]]
    return Table("", ["", *names, Column(_HEADS[-1], ".2f"), Column("races", right=True)], rows)


def _marked(text: str, wrong: bool, below: str = "") -> Cell:
    return Cell(f"{text}!", "bad", below) if wrong else Cell(text, "", below)


def _rows(frame: pd.DataFrame) -> list[Any]:
    return list(frame.itertuples())
