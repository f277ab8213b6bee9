"""Writes and reads ``dry.json`` (nothing in it is trusted), and builds the tables that terminal and page share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import AfterValidator, Field, PlainSerializer

from streamrace.detectors import Race
from streamrace.metrics import MemoryUse, StepTime
from streamrace.reports.data import schema, sources
from streamrace.reports.data.schema import Judged
from streamrace.reports.data.sources import Source
from streamrace.reports.text import plain_text
from streamrace.studies.table import Cell, Column, Table
from streamrace.trace.wording import duration

if TYPE_CHECKING:  # it needs torch
    from streamrace.studies.dry_run import Rehearsed

GIB = 1 << 30
_Number = Annotated[float, Field(ge=0, le=1e15, allow_inf_nan=False)]
_Positive = Annotated[_Number, Field(ge=1e-9)]
_Count = Annotated[int, Field(ge=1)]


def _lasting(step: StepTime) -> StepTime:
    if step.time <= 0:
        raise ValueError("a step takes some time")
    return step


class DryJob(schema.JsonPart):
    """The options of a dry run's job with which reports compute."""

    model: str
    nodes: _Count
    gpus: _Count
    hpz: _Count = 1
    network: _Positive | None = None


def _computable(job: dict[str, Any]) -> dict[str, Any]:
    DryJob.model_validate(job)
    return job


class DryOutput(schema.JsonPart):
    """The command's output: verdict and sentence, and the notes below them."""

    verdict: str
    tone: str
    sentence: str
    notes: list[str]


class DryFile(schema.JsonFile):
    """``dry.json``: a dry run's job, its figures, and its races. Early files lack ``said``."""

    NAME = "dry.json"
    format: str = "stream-race-dry-run"
    _ascii = True
    job: Annotated[dict[str, Any], AfterValidator(_computable)]
    parameters: int
    trained: int = 0
    micro_batch: int
    accumulation: int = 1
    operations: int
    host_s: _Number = 0.0
    rank: int = 0
    extension: dict[str, Any] | None = None
    ranks: dict[str, Any] | None = None
    step_s: _Positive
    tokens_per_second: _Positive
    tflops_per_gpu: _Number
    fits: bool
    races: list[Annotated[Judged, PlainSerializer(Race.as_dict)]]
    unexercised: list[str] = []
    steps: Annotated[list[Annotated[StepTime, AfterValidator(_lasting)]], Field(min_length=1)]
    traffic: dict[str, Any] = {}
    memory: MemoryUse
    cache: dict[str, int] | None = None
    said: DryOutput | None = None
    versions: dict[str, str] = {}

    @classmethod
    def of(cls, run: Rehearsed, said: DryOutput, versions: dict[str, str]) -> DryFile:
        """Return the file of a dry run."""
        return cls(
            job=run.job.model_dump(mode="json"),
            parameters=run.parameters,
            trained=run.trained,
            micro_batch=run.micro_batch,
            accumulation=run.accumulation,
            operations=run.operations,
            host_s=run.host_s,
            rank=run.rank,
            extension={**vars(run.extension), "trace": None} if run.extension else None,
            ranks=run.classes.as_dict() if run.classes else None,
            step_s=run.step_s,
            tokens_per_second=run.tokens_per_second,
            tflops_per_gpu=run.tflops,
            fits=run.fits,
            races=[Judged(**vars(race)) for race in run.races],
            unexercised=list(run.unexercised),
            steps=list(run.steps),
            traffic=run.traffic.as_dict(),
            memory=run.memory,
            cache=run.cache._asdict() if run.cache else None,
            said=said,
            versions=versions,
        )

    @property
    def output(self) -> DryOutput:
        """Return the command's output; for a file of an earlier version, built from its races and whether it fits."""
        if self.said:
            return self.said
        verdict = "race" if self.races else "clean" if self.fits else "does not fit"
        sentence = "Accesses race." if self.races else "All accesses on different streams are ordered."
        if not self.fits:
            sentence += " The job does not fit on the GPU."
        return DryOutput(verdict=verdict, tone="good" if verdict == "clean" else "bad", sentence=sentence, notes=[])


@dataclass(frozen=True)
class DryFolder:
    """A dry run's folder, read. ``sources``: as of a run."""

    name: str
    folder: Path
    file: DryFile
    sources: Mapping[str, Source]


def is_dry(folder: Path) -> bool:
    """Check whether the folder is a job's dry run. (Programs checked dry formerly had a file of that name, too.)"""
    return (folder / DryFile.NAME).is_file() and not (folder / "findings.json").is_file()


def load(folder: Path) -> DryFolder:
    """Read the folder of a dry run. Raises :class:`streamrace.reports.data.schema.ReportError`."""
    return DryFolder(plain_text(folder.resolve().name), folder, DryFile.read(folder), sources.read(folder))


def time_table(step: StepTime) -> Table:
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


def memory_table(memory: MemoryUse) -> Table:
    """Return the table of memory by kind: at the peak, and the most of the kind, which may be at another moment."""
    kinds = [(memory.kinds.get(kind, 0), most, kind) for kind, most in {**memory.kinds, **memory.kind_peaks}.items()]
    rows: list[list[Any]] = [
        [_KINDS.get(kind, kind), nbytes / GIB, most / GIB]
        for nbytes, most, kind in sorted(kinds, reverse=True)
        if most >= GIB // 1000
    ]
    moment = memory.moment
    when = f"{moment.phase} of step {moment.step}, micro-batch {moment.micro_batch}" if moment else "nothing"
    rows.append([Cell(f"peak, in {when}", "strong"), memory.peak / GIB, None])
    return Table("Memory at its peak", ["", Column("GiB", ".2f"), Column("kind's most", ".2f")], rows)


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
