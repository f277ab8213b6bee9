"""Implements ``releases``: runs one scenario under the DeepSpeed releases that people used, unmodified."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import click
from rich.progress import Progress

from streamrace.device.hardware import ProfileError, load_profile
from streamrace.device.packages.names import PackageError, parse
from streamrace.frameworks.deepspeed.releases import KNOWN, ReleaseError, environment, installed
from streamrace.process import lifetime
from streamrace.reports.screen.console import Terminal
from streamrace.repro.commands import flags
from streamrace.repro.sessions import studied

_LIMIT_S = 600


@click.command(context_settings={"ignore_unknown_options": True, "allow_extra_args": True})
@click.option("--only", default=",".join(KNOWN), help="Releases, with commas. [default: all known]")
@flags.folder("folder for the runs", "releases")
@click.pass_context
def releases(context: click.Context, only: str, name: str, runs: Path) -> None:
    """Run one scenario with each unmodified release, and distinguish race, stale and uncovered.

    All other options go to ``run``. If a release cannot be installed or does not start, its row says so. Each
    release has two runs: the plain scenario, and one with sizes that do not divide and an edit between steps. A
    report goes to RUNS/NAME/report.
    """
    console = Terminal()
    words = [word.strip() for word in only.split(",") if word.strip()]
    for word in words:
        parse(f"deepspeed=={word}", "--only")
    if not words:
        raise ReleaseError(f"--only names no release: for example {', '.join(KNOWN)}")
    rows: dict[str, dict[str, Any]] = {}
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("releases", total=len(words))
        for word in words:
            progress.update(task, description=f"DeepSpeed {word}")
            if not console.is_terminal:
                console.print(f"DeepSpeed {word}", highlight=False)
            rows[word] = row_of(word, runs / f"{name}-{word}", context.args)
            progress.advance(task)
    runs.mkdir(parents=True, exist_ok=True)
    (runs / f"{name}.json").write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")
    console.print(f"Files: {runs / name}.json, {runs / name}-*/", highlight=False)
    studied.report(console, runs / name, "releases", hardware=_hardware(rows), more=tuple(context.args))


def row_of(release: str, folder: Path, arguments: list[str]) -> dict[str, Any]:
    """Run the release in the plain scenario, and with padded parameters and an edit; return its row."""
    try:
        under = None if release == installed() else environment(release)
        plain = _run(release, under, folder, arguments)
        hard = _run(release, under, folder.with_name(f"{folder.name}-edited"), [*arguments, *_HARD])
    except (ReleaseError, PackageError) as error:
        return {"failure": str(error)}
    return {"plain": plain, "edited": hard}


_HARD = ["--size", "odd", "--edit-after", "2"]


def _run(release: str, under: dict[str, str] | None, folder: Path, arguments: list[str]) -> dict[str, Any]:
    command = lifetime.module("streamrace", "run", "--deepspeed", release, "--runs", str(folder.parent))
    command += ["--name", folder.name, "--overwrite", "--steps", "4", *arguments]
    try:
        done = subprocess.run(
            lifetime.command(command),
            capture_output=True,
            text=True,
            timeout=_LIMIT_S,
            env=under,
        )
    except subprocess.TimeoutExpired:
        raise ReleaseError(f"DeepSpeed {release} did not end within {_LIMIT_S} s") from None
    if done.returncode:
        messages = [line for line in done.stderr.splitlines() if line.startswith(("Error:", "Failed:", "Ended"))]
        raise ReleaseError(messages[-1] if messages else f"DeepSpeed {release} does not start: see {folder}/logs")
    findings: dict[str, Any] = json.loads((folder / "findings.json").read_text(encoding="utf-8"))
    return findings


def _hardware(rows: dict[str, dict[str, Any]]) -> str:
    """Return the profile of the runs and its description."""
    name = next((row["plain"]["scenario"]["hardware"] for row in rows.values() if "plain" in row), None)
    try:
        return f"{name}: {load_profile(name).description}" if name else ""
    except ProfileError:
        return str(name)
