"""Runs ``streamrace check`` in a process of its own, with other releases first on the import path."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from streamrace.process import lifetime
from streamrace.process.lifetime import BY_ITSELF
from streamrace.reports.data.findings import Findings, Verdict
from streamrace.reports.data.schema import ReportError

_STATUS = (0, 1, 4, 5, 6)  # exit statuses that come with a verdict
_LAST = 300  # characters of a failed check's output


class NoVerdict(Exception):
    """The check reached no verdict. The message is the end of a sentence that says why."""


def check(
    words: Sequence[str],
    packages: Sequence[str],
    folder: Path,
    name: str,
    *,
    limit_s: float | None = None,
    more: Mapping[str, str] = MappingProxyType({}),
) -> Findings:
    """Return the findings of ``streamrace check`` with ``packages``. ``words``: options, program and arguments.

    ``folder`` is created; it receives the run as ``name``, and the output as NAME.log. ``limit_s``: time after which
    the check is ended. ``more``: added to its environment. Raises :class:`NoVerdict`.
    """
    command = lifetime.module("streamrace", "check", "--runs", str(folder), "--name", name, "--overwrite")
    command += [*(word for package in packages for word in ("--package", package)), *words]
    environment = {key: value for key, value in os.environ.items() if key != "DS_ACCELERATOR"} | BY_ITSELF | dict(more)
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / f"{name}.log"
    try:
        with log.open("w", encoding="utf-8") as output:
            done = subprocess.run(
                lifetime.command(command),
                stdout=output,
                stderr=output,
                stdin=subprocess.DEVNULL,
                env=environment,
                timeout=limit_s,
                check=False,
            )
    except subprocess.TimeoutExpired:
        raise NoVerdict(f"it took over {limit_s:.0f} s") from None
    try:
        findings = Findings.read(folder / name)
    except (ReportError, OSError) as error:
        lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        raise NoVerdict((lines[-1] if lines else str(error)).removeprefix("Error: ")[-_LAST:]) from None
    failed = findings.failure and findings.verdict != Verdict.HANG  # a hang ends the program, too
    if failed or done.returncode not in _STATUS:
        why = (findings.failure or f"exit status {done.returncode}").rstrip(".")
        raise NoVerdict(f"{why} (see {log.name})")
    return findings
