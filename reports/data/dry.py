"""Reads the folder of a dry run (``dry.json``, nothing trusted), and builds the tables that terminal and page share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, PositiveInt

from streamrace.metrics import MemoryUse, StepTime
from streamrace.reports.data import schema, sources
from streamrace.reports.data.schema import Judged
from streamrace.reports.data.sources import Source
from streamrace.studies.table import Cell, Column, Table
from streamrace.trace.wording import duration

GIB = 1 << 30
_Number = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class _Group(schema.JsonPart):
    name: str
    busy: int
    exposed: int


class _Step(schema.JsonPart):
    """Same fields as :class:`metrics.StepTime`."""

    time: PositiveInt
    compute: int
    exposed: int
    other: int
    idle: int
    blocked: int
    groups: list[_Group]


class _Moment(schema.JsonPart):
    step: int
    micro_batch: int
    phase: str


class _Memory(schema.JsonPart):
    """Same fields as :class:`metrics.MemoryUse`."""

    peak: int
    moment: _Moment | None
    kinds: dict[str, int]


class DryOutput(schema.JsonPart):
    """The command's output: verdict and sentence, and the notes below them."""

    verdict: str
    tone: str
    sentence: str
    notes: list[str]


class DryFile(schema.JsonFile):
    """``dry.json``, as :meth:`streamrace.studies.dry_run.Rehearsed.as_dict` builds it. Early files lack ``said``."""

    NAME = "dry.json"
    format: str = "stream-race-dry-run"  # as in streamrace/studies/dry_run.py, which needs torch
    job: dict[str, Any]
    parameters: int
    micro_batch: int
    operations: int
    step_s: _Number
    tokens_per_second: _Number
    tflops_per_gpu: _Number
    fits: bool
    races: list[Judged]
    steps: Annotated[list[_Step], Field(min_length=1)]
    memory: _Memory
    said: DryOutput | None = None
    unexercised: list[str] = []
    versions: dict[str, str] = {}


@dataclass(frozen=True)
class DryFolder:
    """A dry run's folder, read. ``data``: ``dry.json``; ``file``: the same, checked; ``sources``: as of a run."""

    name: str
    folder: Path
    data: Mapping[str, Any]
    file: DryFile
    sources: Mapping[str, Source]

    @property
    def output(self) -> DryOutput:
        return DryOutput.model_validate(output(self.data))


def output(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the command's output; for a folder of an earlier version, built from its races and whether it fits."""
    if data.get("said"):
        return dict(data["said"])
    verdict = "race" if data["races"] else "clean" if data["fits"] else "does not fit"
    sentence = "Accesses race." if data["races"] else "All accesses on different streams are ordered."
    if not data["fits"]:
        sentence += " The job does not fit on the GPU."
    return {"verdict": verdict, "tone": "good" if verdict == "clean" else "bad", "sentence": sentence, "notes": []}


def is_dry(folder: Path) -> bool:
    """Check whether the folder is a job's dry run. (Programs checked dry formerly had a file of that name, too.)"""
    return (folder / DryFile.NAME).is_file() and not (folder / "findings.json").is_file()


def load(folder: Path) -> DryFolder:
    """Read the folder of a dry run. Raises :class:`streamrace.reports.data.schema.ReportError`."""
    data = schema.read_json(folder / DryFile.NAME)
    file = DryFile.parsed(folder / DryFile.NAME, data)
    return DryFolder(folder.resolve().name, folder, data, file, sources.read(folder))


def time_table(step: StepTime | _Step) -> Table:
    """Return the table of how an optimizer step spends its time."""
    parts = [
        ("computing", step.compute),
        ("exposed communication", step.exposed),
        *((f"  {row.name}: {duration(row.busy)} in all, exposed", row.exposed) for row in step.groups if row.busy),
        ("other streams alone", step.other),
        ("idle", step.idle),
        ("(host blocked)", step.blocked),
    ]
    rows = [[name, duration(time), 100 * time / step.time] for name, time in parts]
    columns = ["", Column("time", right=True), Column("of the step", "{:.1f} %")]
    return Table("Where the step's time goes", columns, rows)


def memory_table(memory: MemoryUse | _Memory) -> Table:
    """Return the table of memory by kind at its peak."""
    kinds = sorted(memory.kinds.items(), key=lambda item: -item[1])
    rows: list[list[Any]] = [[_KINDS.get(kind, kind), nbytes / GIB] for kind, nbytes in kinds if nbytes >= GIB // 1000]
    moment = memory.moment
    when = f"{moment.phase} of step {moment.step}, micro-batch {moment.micro_batch}" if moment else "nothing"
    rows.append([Cell(f"peak, in {when}", "strong"), memory.peak / GIB])
    return Table("Memory at its peak", ["", Column("GiB", ".2f")], rows)


_KINDS = {
    "primary": "parameters (primary partitions)",
    "secondary": "secondary partitions (hpZ)",
    "gathered": "gathered parameters",
    "gradient": "gradients",
    "bucket": "gradient reduce bucket",
    "master": "fp32 parameters",
    "optimizer": "optimizer's moments",
    "buffer": "buffers",
    "temporary": "temporary",
}
