"""Defines a measured figure, and shows figures in a table on the screen."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from importlib.metadata import version
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

_PACKAGES = ("torch", "deepspeed", "transformers", "numpy")
HEADINGS = ("row", "measured", "figure", "limit", "met")


@dataclass(frozen=True)
class Figure:
    """A measured figure; ``value`` and ``limit`` (at most; None for one that only explains another) in ``unit``."""

    row: str
    what: str
    value: float
    unit: str
    limit: float | None = None
    note: str = ""

    @property
    def met(self) -> bool | None:
        return None if self.limit is None else self.value <= self.limit

    def cells(self) -> tuple[str, str, str, str, str]:
        limit = "" if self.limit is None else f"{self.limit:g} {self.unit}".strip()
        met = {None: "", True: "yes", False: "NO"}[self.met]
        what = f"{self.what} ({self.note})" if self.note else self.what
        value = f"{self.value:,.0f}" if self.value >= 100 else f"{self.value:.3g}"
        return self.row, what, f"{value} {self.unit}".strip(), limit, met


def machine() -> dict[str, str]:
    """Return what the figures depend on, without the machine's name; to be called before measuring."""
    return {
        "date": f"{datetime.now():%Y-%m-%d}",
        "processor": _processor(),
        "cores": str(os.cpu_count()),
        "memory": f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 2**30:.0f} GiB",
        "system": f"{platform.system()} {platform.machine()}",
        "load before": f"{os.getloadavg()[0]:.1f}",
        "python": platform.python_version(),
        **{name: version(name) for name in _PACKAGES},
    }


def show(console: Console, figures: Sequence[Figure]) -> None:
    table = Table(title="benchmarks", title_justify="left")
    for heading in HEADINGS:
        table.add_column(heading, overflow="fold")
    for figure in figures:
        *cells, met = figure.cells()
        table.add_row(*cells, Text(met, "bold red" if figure.met is False else "green"))
    console.print(table)


def write_json(figures: Sequence[Figure], where: Mapping[str, str], path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = [{**asdict(figure), "met": figure.met} for figure in figures]
    path.write_text(json.dumps({"machine": dict(where), "figures": rows}, indent=2) + "\n", encoding="utf-8")


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text(encoding="utf-8").splitlines():
            key, _, value = line.partition(":")
            if key.strip() == "model name":
                return value.strip()
    return platform.processor() or platform.machine()
