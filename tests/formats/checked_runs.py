"""Runs of ``streamrace check`` for tests of the formats: a race, a fragile pair and a wrong value, with any names."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from streamrace.detectors import Race, Side, Uninitialised
from streamrace.detectors.confidence.incidental import IncidentalOrder, OrderBasis, WaitSite
from streamrace.detectors.order.races import Name
from streamrace.detectors.values.answers import Answer
from streamrace.detectors.witness import judged
from streamrace.reports.data.findings import Findings
from streamrace.reports.data.verdict import Seen, of_program
from streamrace.trace.records import Frame

LIBRARY = Frame("deepspeed/runtime/zero/stage3.py", 120, "Optimizer.step")
WRITE = (Frame("train.py", 7, "step"), Frame("train.py", 20, "<module>"))
READ = (LIBRARY, Frame("train.py", 9, "average"), Frame("train.py", 20, "<module>"))
OWN = {"train.py": "examples/train.py"}


def race(
    first: Sequence[Frame] = WRITE,
    second: Sequence[Frame] = READ,
    *,
    kernels: tuple[str, str] = ("aten::add", "aten::mul"),
    streams: tuple[str, str] = ("default", "side"),
    memory: str = "weights",
) -> Race:
    return Race(
        kind="write-read",
        first=Side(kernels[0], "write", streams[0], stack=tuple(first)),
        second=Side(kernels[1], "read", streams[1], stack=tuple(second)),
        occurrences=3,
        manifested=0,
        slack_ns=5_000,
        ranks=(0,),
        names=(Name("gathered", memory),),
        examples=(),
    )


def run(**changes: Any) -> Findings:
    """Of a program with a race, harmful. ``changes``: arguments of :func:`of_program`."""
    fields: dict[str, Any] = {
        "options": {"program": "train.py --steps 3", "ranks": 1, "slow": {}},
        "versions": {"streamrace": "0.1.0", "torch": "2.13.0"},
        "races": [race()],
        "seen": Seen(1, 10, 2),
        "witnesses": [judged("harmful", "the loss differs", "t1,0/0/aten::add/2+8us", "streamrace check train.py")],
        "own": OWN,
    }
    return of_program(**fields | changes)


def clean(**changes: Any) -> Findings:
    return run(**{"races": [], "witnesses": ()} | changes)


def fragile(*pairs: Race, at: Frame = READ[1]) -> OrderBasis:
    return OrderBasis((IncidentalOrder((WaitSite("read", at),), pairs or (race(),)),), 1, 0)


def unwritten(kernel: str = "aten::mm", where: str = "the host, by item (train.py:9 average)") -> Uninitialised:
    return Uninitialised(kernel, READ, WRITE, ((0, 64),), 128, 1, ((0, 7),), True, "host", where)


def wrong(name: str = "weight", kind: Any = "stale", says: str = "it equals the one before") -> Answer:
    return Answer(name, 0, kind, says)


def folder_of(run: Findings, folder: Path) -> Path:
    folder.mkdir(exist_ok=True)
    run.write(folder)
    return folder
