"""``python -m benchmarks [row ...]``: measures, shows a table, and writes ``runs/bench.json``.

When every row is measured, or with ``--keep``, the figures replace the rows' earlier ones in ``benchmarks/results.md``.
Exit status 0 whether limits are met or not; 1 where a row could not be measured: the other rows are reported all the
same.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from statistics import median

from rich.console import Console

from benchmarks import figures
from benchmarks.figures import Figure
from benchmarks.stored_rows import keep
from streamrace.device import processor

Say = Callable[[str], None]

DETECTOR_LIMIT_US = 15.0
NATIVE_LIMIT_US = 1.0
_FEW, _MANY, _ENDLESS = 1_000, 100_000, 10_000_000
_ROUNDS, _STRETCHES = 3, 20


def _detector(say: Say) -> list[Figure]:
    """Measure the detector on short and long traces.

    Short traces are repeated until they take as long as the long one, so that both see the same load of the machine.
    The noise, the difference between two measurements of the same work, is reported next to the growth.
    """
    from benchmarks.detector import GROWTH, Trace, grown, handed_on, measure, runs, synthetic
    from streamrace.detectors.engines import Engine

    found: list[Figure] = []
    engines: list[tuple[Engine, Trace, str, float | None]] = [
        ("native", synthetic, "an operation", NATIVE_LIMIT_US),
        ("native", handed_on, "strided and gathered, in memory that is handed on: an operation", None),
        ("python", synthetic, "the engine in Python: an operation", DETECTOR_LIMIT_US),
        ("python", handed_on, "the engine in Python, memory that is handed on: an operation", None),
    ]
    for engine, trace, what, limit in engines:
        few: list[float] = []
        many: list[float] = []
        for round_ in range(1, _ROUNDS + 1):
            say(f"detector: {engine}, round {round_} of {_ROUNDS}")
            few.append(runs(_FEW, _MANY // _FEW, engine, trace) * 1e6)
            many.append(measure(_MANY, engine, trace) * 1e6)
        ratios = [long / short for long, short in zip(many, few, strict=True)]
        note = f"median of {_ROUNDS} rounds: {min(ratios):.2f} to {max(ratios):.2f}"
        found += [
            Figure("detector", f"{what} among {_FEW:,}", median(few), "us", limit),
            Figure("detector", f"{what} among {_MANY:,}", median(many), "us", limit),
            Figure("detector", f"{what} among {_MANY:,} against {_FEW:,}", median(ratios), "times", None, note),
        ]
    say(f"detector: native, {_ENDLESS:,} operations (some minutes)")
    all_ = grown(_ENDLESS, _FEW, _STRETCHES, _MANY // 2)
    noise = median(abs(one - 1) for one in all_.same)
    turns = f"processor time, median of {_STRETCHES} rounds in turns"
    long = f"{turns}: {min(all_.long) * 1e6:.2f} to {max(all_.long) * 1e6:.2f}"
    growth = f"{turns}: {min(all_.ratios):.2f} to {max(all_.ratios):.2f}"
    same = f"median of {_STRETCHES} rounds: {min(all_.same):.2f} to {max(all_.same):.2f}; they are {noise:.1%} off 1"
    return [
        *found,
        Figure("detector", f"an operation among {_ENDLESS:,}", median(all_.long) * 1e6, "us", NATIVE_LIMIT_US, long),
        Figure("detector", f"{_ENDLESS:,} against {_FEW:,}", median(all_.ratios), "times", GROWTH, growth),
        Figure("detector", f"the noise: {_FEW:,} against {_FEW:,}", median(all_.same), "times", None, same),
    ]


@dataclass(frozen=True)
class Row:
    """A row that a module of benchmarks measures. It is imported then: torch and DeepSpeed take seconds to import."""

    module: str
    function: str = "measure"

    def __call__(self, say: Say) -> list[Figure]:
        return self.find()(say)

    def find(self) -> Callable[[Say], list[Figure]]:
        """Import and return the function that measures."""
        found: Callable[[Say], list[Figure]] = getattr(import_module(f"benchmarks.{self.module}"), self.function)
        return found


ROWS: dict[str, Callable[[Say], list[Figure]]] = {
    "command": Row("command"),
    "check": Row("check"),
    "ending": Row("ending"),
    "hang": Row("hang"),
    "recorder": Row("recorder"),
    "step": Row("step"),
    "memory": Row("memory"),
    "long": Row("long"),
    "release": Row("release"),
    "catalogue": Row("catalogue"),
    "detector": _detector,
    "judged": Row("judging_time"),
    "unwritten": Row("uninitialised"),
    "instructions": Row("instruction_counts"),
    "replay": Row("replay"),
    "fuzz": Row("fuzz"),
    "search": Row("search"),
    "dry": Row("dry"),
    "rehearsed": Row("dry_program"),
    "many": Row("dry", "measure_many"),
    "sweep": Row("dry", "measure_sweep"),
    "published": Row("published"),
    "pipelines": Row("published", "measure_pipelines"),
    "page": Row("page"),
    "rings": Row("rings"),
    "sharding": Row("sharding"),
    "device": Row("device"),
    "graphs": Row("graphs"),
    "triton": Row("triton"),
    "watch": Row("watch"),
    "watch-zero3": Row("watch", "measure_zero3"),
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Measure speed and memory.")
    parser.add_argument("rows", nargs="*", metavar="row", help=f"what to measure: {', '.join(ROWS)} (default: all)")
    parser.add_argument("--keep", action="store_true", help="put them into benchmarks/results.md (on a quiet machine)")
    options = parser.parse_args()
    rows = options.rows or list(ROWS)
    if unknown := [row for row in rows if row not in ROWS]:
        parser.error(f"there is no row '{unknown[0]}': choose from {', '.join(ROWS)}")
    processor.answer()
    console = Console()
    where = figures.machine()
    found: list[Figure] = []
    broken: list[str] = []
    for row in dict.fromkeys(rows):
        try:
            with console.status(row) as status:
                found += ROWS[row](status.update if console.is_terminal else console.print)
        except RuntimeError as error:  # the figures of the other rows are not lost
            broken.append(f"{row}: {error}")
    figures.show(console, found)
    figures.write_json(found, where, Path("runs/bench.json"))
    console.print("Written: runs/bench.json", highlight=False)
    if found and (options.keep or set(rows) == set(ROWS)):
        console.print(f"Written: benchmarks/{keep(found, where).name}", highlight=False)
    if broken:
        sys.exit("\n".join(broken))


if __name__ == "__main__":
    main()
