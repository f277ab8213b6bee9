"""Compares checksums that must be equal on all ranks."""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from streamrace.detectors.live.chains import Sum, SumEvent
from streamrace.detectors.live.finding import PHASES, Cause, Finding, Kind, first_few
from streamrace.detectors.live.ops import add

Table = dict[str, tuple[int, tuple[int, ...]]]


def table(sums: Iterable[Sum]) -> Table:
    """Return the checksums that must be equal on all ranks: of whole parameters, by use (ZeRO-3) or step (replicas).

    (Order of execution, sums), by a key that is the same on all ranks: micro-batch, phase, index of use, parameter.
    """
    rows: Table = {}
    times: Counter[tuple[int, str, str]] = Counter()
    for measured in sorted(sums, key=lambda measured: measured.order):
        if measured.partition is not Kind.PARAMETER or measured.event not in (SumEvent.USE, SumEvent.UPDATE):
            continue
        use = (measured.micro_batch, measured.phase, measured.parameter)
        key = f"{measured.micro_batch:06d}/{PHASES.index(measured.phase)}/{times[use]:03d}/{measured.parameter}"
        times[use] += 1
        rows[key] = (measured.order, measured.sums)
    return rows


def digest(table: Table) -> str:
    """Return a digest of all checksums; '' if there are none."""
    return f"{zlib.crc32(repr(sorted((key, sums) for key, (_, sums) in table.items())).encode()):08x}" if table else ""


def odd_one_out(step: int, tables: Sequence[Mapping[str, Sequence[Any]]]) -> Finding | None:
    """Find the first parameter that is not the same on all ranks, and the rank that differs.

    The rank that owns a part is right about it; for parameters that are whole on every rank, the majority is.
    """
    common = set.intersection(*(set(table) for table in tables)) if tables else set()
    for key in sorted(common, key=lambda key: (key[:8], tables[0][key][0])):
        rows = [tuple(table[key][1]) for table in tables]
        if len(set(rows)) == 1:
            continue
        micro_batch, phase, _, parameter = key.split("/", 3)
        wrong = _wrong(rows)
        rank, part = wrong[0]
        whole = len(rows[0]) == 1
        cause = Cause.CORRUPTION if whole else Cause.GATHER
        evidence = [
            f"Rank {rank} holds {rows[rank][part]:016x}, "
            f"{'most others' if whole else 'the rank whose part it is'} {_truth(rows, part):016x}."
        ]
        if whole and len(set(rows)) == len(rows):
            sums = first_few([f"{add(*row):016x}" for row in rows])
            evidence = [f"All ranks should hold the same; they hold {sums}."]
        return Finding(
            cause=cause,
            kind=Kind.PARAMETER,
            step=step,
            micro_batch=int(micro_batch),
            phase=PHASES[int(phase)],
            order=int(tables[rank][key][0]),
            rank=rank,
            ranks=tuple(sorted({at_rank for at_rank, _ in wrong})),
            module=parameter.rpartition(".")[0],
            parameter=parameter,
            part=-1 if whole else part,
            evidence=tuple(evidence),
        )
    return None


def _truth(rows: Sequence[tuple[int, ...]], part: int) -> int:
    if len(rows[0]) > 1 and part < len(rows):
        return rows[part][part]
    return Counter(row[part] for row in rows).most_common(1)[0][0]


def _wrong(rows: Sequence[tuple[int, ...]]) -> list[tuple[int, int]]:
    """Return (rank, part) of all that differ from the truth."""
    return [
        (rank, part) for part in range(len(rows[0])) for rank, row in enumerate(rows) if row[part] != _truth(rows, part)
    ]
