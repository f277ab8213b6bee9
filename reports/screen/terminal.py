"""Prints in the terminal: the progress of a run, its verdict, several runs for comparison."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.text import Text

from streamrace.reports.data.findings import Findings
from streamrace.reports.screen.races import finding_text, held_text, unexercised_text
from streamrace.reports.text import race as sentences
from streamrace.reports.text import typed
from streamrace.studies.table import STYLES, Cell, Column, Table

_LAST = 20  # steps that are shown during a run


@dataclass
class Row:
    """One step: losses by rank, of the run and of its reference; findings so far."""

    losses: list[float] = field(default_factory=list)
    reference: list[float] = field(default_factory=list)
    wrong: bool = False
    races: int = 0


class Progress:
    """A live table of steps, losses, reference losses and findings, whose last state stays. Without a terminal, each
    finished step is a line.
    """

    def __init__(self, console: Console, title: str, steps: int) -> None:
        self._console = console
        self._title = title
        self._steps = steps
        self._doing = "starting"
        self._rows: dict[int, Row] = {}
        self._finished: set[int] = set()
        self._live = Live(console=console, refresh_per_second=4) if console.is_terminal else None

    def __enter__(self) -> Progress:
        if self._live:
            self._live.__enter__()
        else:
            self._console.print(self._title, style="bold", highlight=False)
        return self

    def __exit__(self, *error: object) -> None:
        if self._live:
            self._live.update(self._shown(self._finished, None))
            self._live.transient = not self._finished  # without a finished step nothing is worth keeping
            self._live.__exit__(None, None, None)

    def doing(self, activity: str) -> None:
        """Show the current activity, in a few words."""
        self._doing = activity
        if self._live:
            self._live.update(self._shown(sorted(self._rows)[-_LAST:], activity))
        else:
            self._console.print(f"  {activity}", highlight=False)

    def row(self, step: int) -> Row:
        return self._rows.setdefault(step, Row())

    def update(self, finished: Iterable[int] = ()) -> None:
        """Show the changes; ``finished`` steps will not change any more."""
        new = sorted({*finished} - self._finished)
        self._finished.update(new)
        if self._live:
            self._live.update(self._shown(sorted(self._rows)[-_LAST:], self._doing), refresh=bool(new))
        else:
            for step in new:
                row = self._rows[step]
                self._console.print(
                    f"  step {step:>3}/{self._steps}  loss {_loss(row.losses)}  reference {_loss(row.reference)}  "
                    f"{'WRONG' if row.wrong else 'equal'}  races {row.races}",
                    highlight=False,
                )

    def _shown(self, steps: Iterable[int], doing: str | None) -> RenderableType:
        """Return the table below its title, which is outside so that the table's width does not limit it."""
        rows = []
        for step in sorted(steps):
            row = self._rows[step]
            finished = step in self._finished  # before that, equality is unknown
            state = Cell("wrong", "bad") if row.wrong else Cell("equal", "good") if finished else Cell("")
            races = Cell(str(row.races), "bad" if row.races else "") if finished else Cell("")
            rows.append([f"{step}/{self._steps}", _loss(row.losses), _loss(row.reference), state, races])
        columns = [Column(name, right=True) for name in ("step", "loss", "reference loss", "", "races so far")]
        return Group(Text(self._title, "bold"), Table("", columns, rows, doing or ""))


def verdict(console: Console, findings: Findings, folder: Path) -> None:
    """Print the verdict on one run."""
    colour = STYLES[findings.verdict.tone]
    body: list[RenderableType] = [Text(findings.sentence, f"bold {colour}")]
    body += [Text(line) for line in _divergence(findings)]
    if findings.stale:
        body.append(Text(f"Stale: {findings.stale.sentence()}; {findings.stale.uses} uses in all."))
    body += [Text(f"Uncovered: {uncovered.sentence()}.") for uncovered in findings.uncovered]
    if findings.watch:
        body.append(Text(f"The NaN watch: {findings.watch['sentence']}"))
        body += [Text(f"  {line}") for line in findings.watch["evidence"]]
    for found in findings.found:
        body += [Text(""), finding_text(found)]
    for held in findings.held:
        body += [Text(""), held_text(held)]
    if findings.rests and findings.rests.unexamined:
        body.append(Text(f"\n{findings.rests.unexamined} more lines that wait were not left out by themselves."))
    body += unexercised_text(findings.unexercised)
    if findings.virtual_ns_per_step is not None:
        cost = f"Virtual time per step: {_ms(findings.virtual_ns_per_step)} ms, "
        body += [Text(""), Text(f"{cost}host blocked {_ms(findings.host_blocked_ns_per_step)} ms of it.")]
    console.print(Panel(Group(*body), title=f"verdict: {findings.verdict}", border_style=colour))
    for found in findings.found:
        if found.race.witness is None:
            continue
        text, command = sentences.witness(found.number, found.race.witness)
        console.print(f"{text}{':' if command else '.'}", highlight=False)
        if command:  # outside the frame, as this is a line to copy
            console.print(f"  {typed(command)}", highlight=False, soft_wrap=True)
    console.print(f"Files: {folder}/findings.json, metrics.csv, parameters.csv, trace/", highlight=False)


@contextmanager
def doing(console: Console, activity: str) -> Iterator[None]:
    """Show a message during a long operation; without a terminal, as a line."""
    if console.is_terminal:
        with console.status(Text(activity)):
            yield
    else:
        console.print(f"  {activity}", highlight=False)
        yield


def comparison(console: Console, runs: Mapping[str, Findings], folders: Mapping[str, Path]) -> None:
    """Print several runs for comparison, a column for each."""
    rows: dict[str, Callable[[Findings], str | Cell]] = {
        "verdict": lambda findings: Cell(findings.verdict, findings.verdict.tone),
        "racing pairs": lambda findings: str(sum(race.occurrences for race in findings.races)),
        "manifested": lambda findings: str(sum(race.manifested for race in findings.races)),
        "first wrong parameter": _first_parameter,
        "first wrong loss": _first_loss,
        "virtual ms per step": lambda findings: _ms(findings.virtual_ns_per_step),
        "host blocked, ms": lambda findings: _ms(findings.host_blocked_ns_per_step),
    }
    cells = [[title, *(cell(findings) for findings in runs.values())] for title, cell in rows.items()]
    console.print(Table("side by side", ["fix", *runs], cells))
    for fix, folder in folders.items():
        console.print(f"{fix}: {folder}", highlight=False)


def _ms(ns: float | None) -> str:
    return "" if ns is None else f"{ns / 1e6:.1f}"


def _first_parameter(findings: Findings) -> str:
    wrong = findings.divergence.parameter if findings.divergence else None
    return f"step {wrong.step}.{wrong.micro_batch} {wrong.phase}: {wrong.name}" if wrong else "none"


def _first_loss(findings: Findings) -> str:
    loss = findings.divergence.loss if findings.divergence else None
    return f"step {loss.step}.{loss.micro_batch}: {loss.value:.4f} for {loss.reference:.4f}" if loss else "none"


def _divergence(findings: Findings) -> list[str]:
    divergence = findings.divergence
    if divergence is None:
        return []
    if not divergence.diverged:
        return [f"{divergence.compared} values compared with plain gloo on CPU, and the final state: all equal."]
    lines = []
    wrong = divergence.parameter
    if wrong is not None:
        state = f"{wrong.bad} values are not finite" if wrong.bad else "the values are finite, and wrong"
        parts, ranks = ", ".join(map(str, wrong.parts)), ", ".join(map(str, wrong.ranks))
        lines.append(
            f"First wrong parameter: {wrong.name} in {wrong.phase} of step {wrong.step}, "
            f"micro-batch {wrong.micro_batch}, on rank {ranks}. "
            f"The wrong part is that of rank {parts} of its group: {state}."
        )
    if divergence.loss is not None:
        loss = divergence.loss
        lines.append(
            f"First wrong loss: step {loss.step}, micro-batch {loss.micro_batch}, rank {loss.rank}: "
            f"{loss.value:.6g} instead of {loss.reference:.6g}."
        )
    if divergence.final:
        lines.append(f"Final state: {len(divergence.final)} partitions differ.")
    return lines


def _loss(values: Sequence[float]) -> str:
    if not values:
        return "…"
    return "nan" if any(math.isnan(value) for value in values) else f"{fmean(values):.6f}"
