"""Traces for the metrics, record by record."""

from __future__ import annotations

from streamrace.trace import records
from streamrace.trace.records import Collective, Group, Launch, TraceRecord


def begin(*, rank: int = 0, world: int = 1) -> TraceRecord:
    return records.begin(rank, world)


def launch(stream: int, start: int, end: int, *, issued: int | None = None) -> Launch:
    return Launch(0, stream, "aten::add", (), (), 0, start if issued is None else issued, start, end)


def collective(
    kernel: str, group: int, nominal: int, *, stream: int = 1, time: tuple[int, int] = (0, 1), link: str = ""
) -> Collective:
    return Collective(0, stream, f"nccl::{kernel}", (), (), 0, time[0], *time, group, 1, -1, 0, nominal, -1.0, link)


def groups(*ranks: tuple[int, ...]) -> list[TraceRecord]:
    return [Group(number, one) for number, one in enumerate(ranks)]
