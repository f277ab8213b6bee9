"""Keeps the latest measurement of each row for ``benchmarks/results.md``, with its day and its machine.

Rows are measured on different days: some take minutes, some want a quiet machine. ``results.json`` holds them, and the
page is written from it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.figures import HEADINGS, Figure

RESULTS = Path(__file__).with_name("results.json")
_INTRODUCTION = """# Speed and memory

Written by `make bench`. Limits are upper ones; a figure without a limit explains its neighbours, or is the baseline
that was measured in the same run. `make bench ARGS='--keep watch'` measures one row again and puts it in the place of
the old one. The last column says where and when a row was measured: see below the table.
"""


def keep(figures: Sequence[Figure], machine: Mapping[str, str], results: Path = RESULTS) -> Path:
    """Replace the earlier figures of the rows in ``figures``, measured on ``machine``; return the page's path."""
    rows: dict[str, Any] = json.loads(results.read_text(encoding="utf-8")) if results.exists() else {}
    for row in dict.fromkeys(figure.row for figure in figures):
        of_row = [
            {name: value for name, value in asdict(one).items() if name != "row"} for one in figures if one.row == row
        ]
        rows[row] = {"machine": dict(machine), "figures": of_row}
    results.write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")
    page = results.with_suffix(".md")
    page.write_text(_page(rows), encoding="utf-8")
    return page


def _page(rows: Mapping[str, Any]) -> str:
    machines: list[dict[str, str]] = []
    lines = [_line([*HEADINGS, "where"]), _line(["---"] * (len(HEADINGS) + 1))]
    for row, measured in rows.items():
        if measured["machine"] not in machines:
            machines.append(measured["machine"])
        where = str(machines.index(measured["machine"]) + 1)
        lines += [_line([*Figure(row, **one).cells(), where]) for one in measured["figures"]]
    said = [f"{at}. {', '.join(f'{name}: {one[name]}' for name in one)}" for at, one in enumerate(machines, 1)]
    return "\n".join([_INTRODUCTION, *lines, "", "Where, and when:", "", *said]) + "\n"


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
