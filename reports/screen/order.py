"""Prints the order that a trace of torch's profiler tells, in the frame and the words of ``streamrace check``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import permutations
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.panel import Panel
from rich.text import Text

from streamrace.kineto.file import KinetoTrace, positive
from streamrace.kineto.limits import has_waits, limits
from streamrace.kineto.names import name, places
from streamrace.kineto.order import KinetoStream, Order, Unordered
from streamrace.reports.screen.races import MOST, listed
from streamrace.studies.table import Column, Table
from streamrace.trace import wording
from streamrace.trace.untrusted import visible

_ROWS = 24  # pairs of streams that are printed
_NO_RACE = "a profiler's trace does not tell which memory work uses, so it can neither show nor exclude a race"
_ORDERED = "All of it waits for what was launched before it on other streams."
_APART = "No work of two streams ran at the same time; the trace does not tell if anything but chance kept it apart."
_NEXT = (
    "streamrace check --on-gpu train.py records the program on its GPUs, with the memory that it uses, and judges it",
    "with streamrace.recording(FOLDER): does so for some steps of a training, and streamrace judge FOLDER judges them",
)


@dataclass
class _Pairs:
    """Unordered work of the same two names on the same two streams; ``last`` stands for all."""

    last: Unordered
    times: int = 0
    overlapped: int = 0

    @property
    def rank(self) -> tuple[bool, bool, int]:
        collective = self.last.first.is_collective or self.last.second.is_collective
        return not collective, not self.overlapped, -self.times


def show(console: Console, trace: KinetoTrace, order: Order) -> None:
    """Print the work that nothing orders, what the trace does not tell, and the waits between streams."""
    told = has_waits(trace)  # if not, only what ran at the same time is known to be unordered
    several = len({stream.device for stream in order.streams}) > 1
    labels = {stream: f"{f'GPU {stream.device} ' * several}stream {stream.number}" for stream in order.streams}
    rows: list[list[Any]] = []
    groups: list[_Pairs] = []
    for first, second in permutations(labels, 2):
        found = [pair for pair in order.unordered(first, second) if told or pair.overlapped]
        waits = order.waits[first, second]
        if first.device == second.device and (found or waits):
            last = f"{name(found[-1].first)}, {name(found[-1].second)}" if found else ""
            counts = [len(order.streams[second]), len(found), sum(pair.overlapped for pair in found)]
            rows.append([labels[first], labels[second], waits, *counts, last])
            groups += _grouped(found)
    groups.sort(key=lambda group: group.rank)
    clauses = list(_clauses(trace, groups[:MOST], labels, told=told))
    if len(groups) > MOST:
        clauses.append(f"And {wording.count(len(groups) - MOST, 'more such pair')}")
    body: list[RenderableType] = [Text(f"Unknown: {_NO_RACE}.", "bold yellow")]
    if labels:
        body.append(Text(_seen(trace, order, told=told)))
    if len(labels) > 1 and not groups:
        body.append(Text(_ORDERED if told else _APART))
    heading = "Work that nothing in the trace orders:" if told else "Work that ran at the same time, so is not ordered:"
    body += listed(heading, clauses)
    body += listed("What the trace does not tell:", [visible(limit, lines=False) for limit in limits(trace, order)])
    body += listed("To judge races:", _NEXT)
    console.print(Panel(Group(*body), title="verdict: unknown", border_style="yellow"))
    if rows:
        console.print(_table(rows[:_ROWS], told=told))
    if len(rows) > _ROWS:
        console.print(f"and {wording.count(len(rows) - _ROWS, 'more pair')} of streams")


def _grouped(found: Sequence[Unordered]) -> Iterator[_Pairs]:
    groups: dict[tuple[str, str], _Pairs] = {}
    before = None
    for pair in found:
        # Only the first that comes after, or runs beside it: what follows on its stream does not wait either.
        if (pair.first, pair.overlapped) != before:
            group = groups.setdefault((name(pair.first), name(pair.second)), _Pairs(pair))
            group.last, group.times, group.overlapped = pair, group.times + 1, group.overlapped + pair.overlapped
        before = pair.first, pair.overlapped
    yield from groups.values()


def _seen(trace: KinetoTrace, order: Order, *, told: bool) -> str:
    gpus = len({stream.device for stream in order.streams})
    works = wording.count(sum(map(len, order.streams.values())), "kernel or copy", "kernels and copies")
    on = visible(wording.cut(trace.gpu, 48), lines=False) if gpus == 1 and trace.gpu else wording.count(gpus, "GPU")
    waits = f", and {wording.count(order.waits.total(), 'wait')} between streams" if told else ""
    return f"{works} on {wording.count(len(order.streams), 'stream')} of {on}{waits}."


def _clauses(
    trace: KinetoTrace, groups: Sequence[_Pairs], labels: dict[KinetoStream, str], *, told: bool
) -> Iterator[str]:
    where = places(trace, (work for group in groups for work in (group.last.first, group.last.second)))
    begin = min((at for event in trace.events if (at := positive(event.get("ts")))), default=0.0)
    for group in groups:
        first, second = (
            visible(f"{name(work)} ({', '.join(filter(None, [labels[work.stream], where.get(work)]))})", lines=False)
            for work in (group.last.first, group.last.second)
        )
        said = f"{second} does not wait for {first}" if told else f"{second} ran while {first} did"
        some = f" {group.overlapped:,} of them" if group.overlapped < group.times else ""
        overlap = f",{some} while it ran" if told and group.overlapped else ""
        when = wording.duration(round(1000 * (group.last.second.start - begin)))
        yield f"{said}: {wording.times(group.times)}{overlap}, last at {when}"


def _table(rows: Sequence[Sequence[Any]], *, told: bool) -> Table:
    verb = "does not wait for work launched before it" if told else "ran at the same time as work"
    counts = [Column(name, ",d") for name in ("waits", "work", "not waiting", "overlapped")]
    columns, kept = ["from", "to", *counts, "last"], [0, 1, 2, 3, 4, 5, 6] if told else [0, 1, 3, 5, 6]
    title = f"Work of the stream 'to' that {verb} on the stream 'from'"
    return Table(title, [columns[at] for at in kept], [[row[at] for at in kept] for row in rows])
