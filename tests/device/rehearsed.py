"""A script run live, by all its ranks, and dry, by one: their traces are to tell the same."""

from __future__ import annotations

import itertools
import os
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from streamrace.device import dry, launch
from streamrace.device.options import LaunchOptions
from streamrace.device.scripts import Program
from streamrace.trace.files import TraceReader, file_of
from streamrace.trace.records import Begin, Free, Probe, Probed, Seal, Stack, TraceRecord

_CLOCKS = {"issued", "start", "end", "time", "began"}


def live(script: Path, arguments: Sequence[str], folder: Path, *, ranks: int = 1) -> Path:
    """Run it on ``ranks`` ranks; gives the traces' folder."""
    folder.mkdir(parents=True, exist_ok=True)
    status = launch.main(["--trace", str(folder), "--ranks", str(ranks), str(script), *arguments])
    assert status == 0
    return folder


def rehearse(
    script: Path, arguments: Sequence[str], folder: Path, *, ranks: int = 1, per_node: int = 0, real: int = dry.REAL
) -> Path:
    """Run it dry, as rank 0 of so many, in this process, which can do nothing else afterwards."""
    folder.mkdir(parents=True, exist_ok=True)
    dry.install(dry.World(ranks, per_node), real=real)
    status = launch.run(LaunchOptions(Program(str(script), tuple(arguments)), trace=folder))
    assert status == 0
    return folder


def rehearse_apart(
    script: Path, arguments: Sequence[str], folder: Path, *, ranks: int = 1, real: int = dry.REAL
) -> Path:
    """The same in a fork of this process, which may go on: with another ``real``."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            rehearse(script, arguments, folder, ranks=ranks, real=real)
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    _, status = os.waitpid(child, 0)
    assert status == 0, "the dry run failed; see above"
    return folder


def rehearse_together(
    script: Path, arguments: Sequence[str], folder: Path, *, ranks: int, running: int, output: Path | None = None
) -> Path:
    """Run it dry as ``running`` of ``ranks`` ranks, equally far apart. ``output``: gets all that they print."""
    folder.mkdir(parents=True, exist_ok=True)
    world = dry.World(ranks)
    options = LaunchOptions(Program(str(script), tuple(arguments)), running, world, trace=folder, output=output)
    status = launch.run(options)
    assert status == 0
    return folder


def told(folder: Path, *, clocks: bool = True, rank: int = 0) -> list[TraceRecord]:
    """A rank's records, stacks in place of their numbers. Checksums are left out, and times without ``clocks``."""
    stacks: dict[int, Any] = {}
    records: list[TraceRecord] = []
    for record in TraceReader(file_of(folder, rank)).read():
        if isinstance(record, Stack):
            stacks[record.id] = record.frames
        elif not isinstance(record, (Begin, Seal, Probe, Probed)):
            if hasattr(record, "stack"):
                record = record._replace(stack=stacks[record.stack])
            if not clocks:
                record = record._replace(**{name: 0 for name in record._fields if name in _CLOCKS})
            records.append(record)
    return _in_order(records)


def _in_order(records: list[TraceRecord]) -> list[TraceRecord]:
    """What is let go at once in the order of blocks: autocast forgets its copies in the order of their addresses."""
    made: list[TraceRecord] = []
    for _, together in itertools.groupby(records, lambda one: (one.time,) if isinstance(one, Free) else id(one)):
        made += sorted(together)
    return made


def difference(one: Path, other: Path, *, clocks: bool = True, rank: int = 0) -> str:
    """The first record in which they differ, with what stands before it; empty where none does."""
    left, right = told(one, clocks=clocks, rank=rank), told(other, clocks=clocks, rank=rank)
    for at, (here, there) in enumerate(zip(left, right, strict=False)):
        if here != there:
            before = "\n".join(map(str, left[max(0, at - 3) : at]))
            return f"record {at} of {len(left)} and {len(right)}, behind\n{before}\n  {here}\n  {there}"
    return (
        ""
        if len(left) == len(right)
        else f"{len(left)} and {len(right)} records; then\n  {(left + right)[min(len(left), len(right))]}"
    )
