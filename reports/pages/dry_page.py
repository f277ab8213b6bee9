"""Builds the report of a dry run as a page (:mod:`reports.pages.html`), and a short one as Markdown."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from streamrace.reports.data.dry import DryFile, DryFolder, memory_table, time_table
from streamrace.reports.data.findings import found
from streamrace.reports.data.stamp import model_of, stamp, written
from streamrace.reports.pages import html, markdown, run_page
from streamrace.reports.pages.words import WORDS
from streamrace.studies.study import Fact
from streamrace.studies.table import Table

_FILES = {
    "report.md": "the same in short, to paste into an issue",
    "../dry.json": "for programs",
    "../timeline.json.gz": "a timeline: open it in ui.perfetto.dev",
}


def page(dry: DryFolder, files: Sequence[tuple[str, str]] = ()) -> str:
    """Return the page. ``files``: names and descriptions of the files next to it."""
    verdict = dry.file.output
    return html.render(
        "dry.html",
        {},
        title=f"{verdict.verdict}: dry run {dry.name}",
        stamp=stamp("Dry run", model_of({"job": dry.file.job}), written(dry.folder / DryFile.NAME)),
        verdict=verdict.verdict,
        tone=verdict.tone if verdict.tone in ("good", "warn", "bad") else "",
        headline=verdict.sentence,
        facts=facts(dry),
        notes=verdict.notes,
        tables=tables(dry),
        findings=run_page.findings(found(dry.file.races), dry.sources),
        unexercised=dry.file.unexercised,
        ran=run_page.ran([(dry.name, dry.file.versions, dry.file.job, {})]),
        words=WORDS,
        files=files,
    )


def facts(dry: DryFolder) -> list[Fact]:
    """Return the rehearsed job, and the figures of one of its steps."""
    file, job = dry.file, dry.file.job
    nodes, gpus = job.get("nodes"), job.get("gpus")
    network = f" with {job['network']:g} Gbit/s between nodes" if job.get("network") else ""
    return [
        Fact("model", f"{job.get('model')}, {file.parameters / 1e9:.2f} billion parameters"),
        Fact("cluster", f"{nodes} nodes of {gpus} GPUs, {job.get('hardware')}{network}", "hardware profile"),
        Fact("sharding", _sharding(job)),
        Fact("batch", f"micro-batch {file.micro_batch} of {job.get('sequence')} tokens", "micro-batch"),
        Fact("optimizer step", f"{file.step_s:.4g} s", "virtual time"),
        Fact("throughput", f"{file.tokens_per_second:,.0f} tokens/s on all GPUs"),
        Fact("computing rate", f"{file.tflops_per_gpu:.1f} TFLOPs per GPU"),
    ]


def _sharding(job: dict[str, Any]) -> str:
    if job.get("sharding"):
        return f"{job['sharding']} by our own engine"
    if job.get("config"):
        return f"DeepSpeed {job.get('deepspeed')} as {job['config']} says"
    hpz = job.get("hpz", 1)
    group = f", hpZ {hpz}" if hpz != 1 else ", no hpZ" if job.get("stage") == 3 else ""
    return f"DeepSpeed {job.get('deepspeed')}, ZeRO-{job.get('stage')}{group}; fix {job.get('fix')}"


def tables(dry: DryFolder) -> list[Table]:
    """Return the tables of time and memory."""
    return [time_table(dry.file.steps[-1]), memory_table(dry.file.memory)]


def write(dry: DryFolder, target: Path) -> str:
    """Write the page and ``report.md`` into the folder ``target``; return the verdict's sentence. Raises OSError."""
    target.mkdir(parents=True, exist_ok=True)
    text = markdown.render(
        "dry.md",
        verdict=dry.file.output.verdict,
        headline=dry.file.output.sentence,
        facts=facts(dry),
        notes=dry.file.output.notes,
        tables=tables(dry),
        findings=found(dry.file.races),
        unexercised=dry.file.unexercised,
        versions=run_page.ran([(dry.name, dry.file.versions, dry.file.job, {})]).versions,
        job=[f"{name}={json.dumps(value, ensure_ascii=False)}" for name, value in dry.file.job.items() if value],
    )
    html.write(text, target / "report.md")
    beside = dry.folder.resolve() == target.resolve().parent  # otherwise a link would lead elsewhere
    present = [name for name in _FILES if not name.startswith("..") or (beside and (target / name).is_file())]
    html.write(page(dry, [(name, _FILES[name]) for name in present]), target / "index.html")
    return dry.file.output.sentence
