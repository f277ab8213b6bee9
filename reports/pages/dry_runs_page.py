"""Sets several dry runs side by side: the options that differ, steps, memory, races, and which is the fastest."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from streamrace.reports.data import loading
from streamrace.reports.data.dry import GIB, DryFile, DryFolder, DryJob
from streamrace.reports.data.stamp import written
from streamrace.reports.pages.study_page import StudyReport
from streamrace.reports.pictures import plan
from streamrace.reports.text import reports_on
from streamrace.studies import predicted_steps
from streamrace.studies.predicted_steps import ERRORS, Gain
from streamrace.studies.study import Conclusion, Fact
from streamrace.studies.table import Cell, Column, Table, each
from streamrace.trace import wording

_CLUSTER = ("nodes", "gpus", "hardware", "network", "host", "slow")
_TOLD = 3  # gains in the sentence
_Options = Mapping[str, Mapping[str, str]]


def compared(runs: Sequence[DryFolder]) -> StudyReport:
    """Return the report. Raises :class:`streamrace.reports.data.schema.ReportError` for two folders of one name."""
    loading.distinct(runs)
    options = {run.name: _options(run.file) for run in runs}
    names = list(dict.fromkeys(name for given in options.values() for name in given))
    differ = [name for name in names if len({given.get(name, "") for given in options.values()}) > 1]
    common = {name: value for name, value in options[runs[0].name].items() if name not in differ and value}
    frame = pd.DataFrame([_figures(run) for run in runs]).assign(gpu_gib=_capacity(runs, differ))
    if alike := len({(run.file.job["model"], run.file.parameters) for run in runs}) == 1:
        frame = frame.sort_values(["fits", "tokens_per_second"], ascending=False, kind="stable", ignore_index=True)
    answer = _conclude(frame, options) if alike else _models(runs)
    ways = [[name, *(options[name].get(option, "") for option in differ)] for name in frame.run]
    packages = dict.fromkeys(package for run in runs for package in run.file.versions)
    return StudyReport(
        kind="dry runs",
        title=answer.title,
        verdict=answer.verdict,
        sentence=answer.sentence,
        tone=answer.tone,
        facts=[Fact("in common", ", ".join(map(_in_short, common.items()))), *answer.facts],
        charts={"dry-runs": plan.drawn(frame, "Time and memory by dry run", frame.run)},
        tables=[
            *([Table("What differs", ["dry run", *map(_option, differ)], ways)] if differ else []),
            _table(frame, "The fastest that fits first" if alike else "Side by side"),
        ],
        command=reports_on(*(run.folder for run in runs)),
        versions={
            name: wording.every(dict.fromkeys(run.file.versions.get(name, "none") for run in runs)) for name in packages
        },
        configuration=common,
        metrics=frame,
        words=("hpZ", "micro-batch", "race", "virtual time", "hardware profile"),
        more={"options": pd.DataFrame([{"run": name, **given} for name, given in options.items()])},
        when=max(written(run.folder / DryFile.NAME) for run in runs),
    )


def _options(file: DryFile) -> dict[str, str]:
    """Return the options of the job as texts, empty for those that are off; with the batch and the rank that ran."""
    ran = {"micro_batch": file.micro_batch, "accumulation": file.accumulation, "rank": file.rank}
    return {name: _shown(value) for name, value in {**file.job, **ran}.items()}


def _shown(value: Any) -> str:
    if isinstance(value, (str, float)):
        return f"{value:g}" if isinstance(value, float) else value
    return json.dumps(value, ensure_ascii=False) if value else ""


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _in_short(option: tuple[str, str]) -> str:
    name, value = _option(option[0])[2:], option[1]
    return name if value == "true" else f"{name} {value}"


def _figures(run: DryFolder) -> dict[str, Any]:
    file = run.file
    job = DryJob.model_validate(file.job)
    return {
        "run": run.name,
        "step_s": file.step_s,
        "tokens_per_second": file.tokens_per_second,
        "tflops_per_gpu": file.tflops_per_gpu,
        "reserved_gib": file.cache.get("reserved", math.nan) / GIB if file.cache else math.nan,
        "fits": file.fits,
        **predicted_steps.figures(file.steps[-1], file.memory, file.races, job),
    }


def _capacity(runs: Sequence[DryFolder], differ: Sequence[str]) -> float:
    """Return the GiB of the GPU, which the file of a job that exceeds them names; NaN if unknown or not the same."""
    known = {run.file.memory.excess.capacity / GIB for run in runs if run.file.memory.excess}
    return known.pop() if len(known) == 1 and "hardware" not in differ else math.nan


def _conclude(frame: pd.DataFrame, options: _Options) -> Conclusion:
    title = f"{len(frame)} dry runs side by side"
    facts = [predicted_steps.errors()]
    best, *others = each(frame[frame.fits]) if frame.fits.any() else (None,)
    if best is None:
        least = frame.sort_values("peak_gib", kind="stable").iloc[0]
        text = f"None of the {len(frame)} dry runs fits: {least.run} needs least, {least.peak_gib:.3g} GiB of a GPU."
        return Conclusion(title, "nothing fits", "bad", text, facts)
    gains = [
        Gain(other.run, best.tokens_per_second / other.tokens_per_second, _errors(best, other, options))
        for other in others
    ]
    if any(gain.errors != ERRORS.gain for gain in gains):
        facts.append(Fact("other cluster", "gains over a run on another cluster have the errors of both steps"))
    against = predicted_steps.compared(gains[:_TOLD], gains) if gains else "No other one fits"
    sentence = f"{best.run} is the fastest that fits: {predicted_steps.speed(best)}. {against}."
    if best.races:
        sentence += f" It has {wording.count(best.races, 'race')}, which its own report shows."
    return Conclusion(title, f"{best.run} is the fastest", "warn" if best.races else "good", sentence, facts)


def _errors(best: Any, other: Any, options: _Options) -> tuple[float, float]:
    """Return the errors of a gain: as published for one cluster, otherwise those of both steps together."""
    if all(options[best.run].get(name, "") == options[other.run].get(name, "") for name in _CLUSTER):
        return ERRORS.gain
    (low, high), (least, most) = ERRORS.of_step(best), ERRORS.of_step(other)
    return least / high, most / low


def _models(runs: Sequence[DryFolder]) -> Conclusion:
    models = dict.fromkeys(f"{run.file.job['model']} ({run.file.parameters:,} parameters)" for run in runs)
    text = (
        f"The models differ: {wording.every(models)}. Tokens/s are comparable for one model only, so none of the "
        "dry runs is named as the fastest."
    )
    return Conclusion(f"{len(runs)} dry runs side by side", "models differ", "warn", text)


def _table(frame: pd.DataFrame, title: str) -> Table:
    step, parts = predicted_steps.columns(frame)
    rows = [
        [
            row.run, row.step_s, row.tokens_per_second, row.tflops_per_gpu, *predicted_steps.parts(row), row.peak_gib,
            row.reserved_gib, "yes" if row.fits else Cell("no", "bad"),
        ]
        for row in each(frame)
    ]  # fmt: skip
    columns = [
        "dry run", step, Column("tokens/s", ",.0f"), Column("TFLOPs", ".1f"), *parts, Column("peak", ".2f"),
        Column("reserved", ".2f"), "fits",
    ]  # fmt: skip
    note = f"{predicted_steps.NOTE} TFLOPs: of a GPU, a second. Peak of tensors, and what torch reserves: GiB of a GPU."
    if len({round(row.step_s * row.tokens_per_second) for row in each(frame)}) > 1:
        note += " The steps differ in their tokens: tokens/s tells which is faster."
    return Table(title, columns, rows, note)
