"""Prints the errors of predicted step times, by group."""

from __future__ import annotations

import pandas as pd
from rich.console import Console

from papers.studies.throughput_errors import errors
from streamrace.studies.table import Column, Table


def show(console: Console, frame: pd.DataFrame) -> None:
    """Print the errors of :func:`papers.studies.throughput.study`'s frame: of all rows, and by group."""
    columns = ["", "", Column("rows", "d"), *(Column(name, ".1%") for name in ("mean", "median", "worst"))]
    columns += [Column("signed", "+.1%"), Column("off", "d"), Column("one figure", ".1%")]
    names = ["by", "group", "rows", "mean", "median", "worst", "bias", "off", "calibrated_mean"]
    console.print(Table("Absolute errors of step times", columns, errors(frame)[names].to_numpy().tolist()))
