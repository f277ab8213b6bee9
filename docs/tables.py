"""The tables of ``docs/results/``: each is made of the CSV file that a study left in ``docs/results/data/``.

Most have a row for each row of their file, and a column for each entry of a mapping from its head to what is said of a
row. :func:`render` adds where a table comes from: the file, the command and the day, as ``manifest.json`` has them.
"""

from __future__ import annotations

import json

import pandas as pd

from docs.cells import DATA, Cells, Table, rows_of
from docs.model_tables import MODELS
from docs.paper_tables import PAPERS
from docs.race_tables import RACES

TABLES: dict[str, Table] = {**RACES, **PAPERS, **MODELS}


def render(name: str) -> str:
    """The table as Markdown, and below it where it comes from."""
    file, made = TABLES[name]
    frame = pd.read_csv(DATA / file)
    cells = (
        made(frame) if callable(made) else [{head: say(row) for head, say in made.items()} for row in rows_of(frame)]
    )
    return f"{markdown(cells)}\n\n{origin(file)}"


def markdown(rows: list[Cells]) -> str:
    """Rows of text; columns whose cells all begin with a digit or a sign are figures, and stand to the right."""
    table = pd.DataFrame(rows).fillna("")
    right = [bool(table[head].str.match(r"^(?:[*+(-]*\d|$)").all()) for head in table.columns]
    lines = [list(table.columns), ["--:" if figures else "---" for figures in right], *table.to_numpy().tolist()]
    return "\n".join(f"| {' | '.join(cell.replace('|', '&#124;') for cell in line)} |" for line in lines)


def origin(file: str) -> str:
    """A line that says by which command a file was made, and when."""
    manifest = json.loads((DATA / "manifest.json").read_text(encoding="utf-8"))
    run = next(run for run in manifest.values() if file in run["files"])
    versions = ", ".join(f"{name} {number}" for name, number in run["versions"].items())
    return f"*[{file}](data/{file}), made by `{run['command']}` on {run['date']} with {versions}.*\n{{ .origin }}"
