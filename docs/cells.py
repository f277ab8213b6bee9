"""Cells of the tables of ``docs/results/``: what is said of a row, and in which form."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

GIB = 1 << 30
DATA = Path(__file__).parent / "results" / "data"

Row = Any  # of DataFrame.itertuples
Columns = Mapping[str, Callable[[Row], str]]
Cells = dict[str, str]


class Table(NamedTuple):
    """``file``: of the data. ``made``: columns, or what makes rows of cells of the whole frame."""

    file: str
    made: Columns | Callable[[pd.DataFrame], list[Cells]]


def rows_of(frame: pd.DataFrame) -> list[Row]:
    return list(frame.itertuples())


def form(name: str, form: str = ".2f", none: str = "") -> Callable[[Row], str]:
    """A column's figure; ``none`` where there is none."""

    def say(row: Row) -> str:
        value = getattr(row, name)
        return none if pd.isna(value) else f"{value:{form}}"

    return say


def off(name: str) -> Callable[[Row], str]:
    """An error relative to what is reported, bold where it is larger than a quarter."""
    text = form(name, "+.0%")
    return lambda row: f"**{text(row)}**" if abs(getattr(row, name)) > 0.25 else text(row)


def amount(count: int) -> str:
    unit, name = next(one for one in ((GIB, "GiB"), (1 << 20, "MiB"), (1, "B")) if count >= one[0])
    return f"{count / unit:.3g} {name}"


def name_of(row: Row) -> str:
    """Its name, which is not broken at a hyphen."""
    return str(row.model).replace("-", "&#8209;")


def configuration(row: Row) -> str:
    return (f"hpZ {row.group}" if row.group > 1 else "no hpZ") + (" + qwZ" if row.qwz else "")


def counted(name: str) -> Callable[[Row], str]:
    """What was counted, and what the formula says where that is something else."""

    def say(row: Row) -> str:
        counted, formula = float(getattr(row, name)), float(getattr(row, f"{name}_formula"))
        return f"{counted:,.0f}" + ("" if counted == formula else f" (formula: {formula:,.0f})")

    return say
