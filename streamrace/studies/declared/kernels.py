"""Declares the study ``kernels``: the model of kernels next to published measurements."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from streamrace.studies import kernels as study
from streamrace.studies.study import Conclusion, Fact, Frames, Study, StudyPlan
from streamrace.studies.table import Column, Table, each


def _plan(own: dict[str, Any], options: dict[str, Any]) -> StudyPlan:
    return StudyPlan(lambda run: {"kernels": study.study()}, mark=("check.json", '{"asked": {"study": "kernels"}}\n'))


def _conclude(frames: Frames, options: Mapping[str, str]) -> Conclusion:
    frame = frames["kernels"]
    errors = frame.error.abs()
    worst = frame.iloc[int(errors.to_numpy().argmax())]
    return Conclusion(
        "Microseconds of a kernel, the model's and others'",
        f"{errors.mean():.0%} off on average",
        "good",
        f"The model's time of a kernel is {errors.mean():.1%} off on average in {len(frame)} published measurements, "
        f"and {errors.max():.0%} at worst ({worst.kernel} of {worst['shape']} on {worst.gpu}).",
        [Fact(name, text) for name, text in frame.drop_duplicates("source")[["source", "measured"]].to_numpy()],
    )


def _tables(frames: Frames) -> list[Table]:
    columns = ["GPU", "kernel", Column("rows", ".0f"), Column("mean error", ".1%"), Column("worst", ".1%"), "source"]
    rows = [
        [row.gpu, row.kernel, row.rows, row.mean_error, row.worst, row.source]
        for row in each(study.summary(frames["kernels"]))
    ]
    return [Table("Microseconds of a kernel: ours and theirs", columns, rows)]


STUDY = Study(
    question="How far is the model of kernels from what others have measured?",
    text="""Compare the model of kernels with published measurements: products, attention, memory.

    Dry runs, and all other commands with a hardware profile, time kernels by this model. Nothing is run. Writes a
    table (kernels.csv) and a report.
    """,
    columns={"kernels": study.COLUMNS},
    plan=_plan,
    conclude=_conclude,
    tables=_tables,
    replaces="a table",
)
