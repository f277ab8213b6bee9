"""Runs one public program: on the simulated GPU under ``check``, and on the CPU for its values."""

from __future__ import annotations

import math
import os
import re
import subprocess
import sys
import time
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from benchmarks.reach.programs_list import Program
from streamrace.reports.data.schema import read_json

PATIENCE_S = 300
CLOSE = 1e-4
"""Relative: kernels of libraries that only a GPU takes (fused optimizers, other attention) round in another order."""
_REFUSED = re.compile(r"Error: streamrace: (.+? cannot (?:be simulated|run on a simulated GPU)\b.*)")
_TOLD = re.compile(r"^(?:rank \d+: )?reach:(.*)$", re.MULTILINE)


class Said(StrEnum):
    """The result of a program."""

    EQUAL = "ran and equal to the CPU's values"
    RAN = "ran"
    REFUSED = "refused by name"
    OTHER = "ran with other values"
    OWN_FAULT = "failed by a fault of its own"
    FAILED = "failed"


@dataclass(frozen=True)
class Result:
    """``why``: of a refusal, a failure, other values, or of no comparison. ``verdict``: of ``check``."""

    program: Program
    said: Said
    why: str
    verdict: str
    seconds: float


def run(program: Program, folder: Path) -> Result:
    """Run a program; its outputs stay in ``folder``."""
    name = re.sub(r"\W+", "-", program.name)
    ranks = ["--ranks", str(program.ranks)] if program.ranks else []
    gpus = ["--gpus", str(program.gpus)] if program.gpus > 1 else []
    words = [*ranks, *gpus, str(program.file), *program.arguments]
    began = time.monotonic()
    check = ["check", "--witnesses", "0", "--runs", str(folder / "runs"), "--name", name, "--overwrite"]
    output = _output([*check, *words], folder / f"{name}.txt", "cuda")
    seconds = time.monotonic() - began
    findings = folder / "runs" / name / "findings.json"
    verdict = str(read_json(findings)["verdict"]) if findings.exists() else ""
    told = _TOLD.findall(output)
    if not told:
        refused = _REFUSED.search(output)
        said, why = (Said.REFUSED, refused[1]) if refused else (Said.FAILED, _last_error(output))
        if program.own_fault and not refused:
            said, why = Said.OWN_FAULT, f"{program.own_fault} ({why})"
    elif program.alone:
        said, why = Said.RAN, program.alone
    else:
        on_cpu = _TOLD.findall(_output(["device", *words], folder / f"{name}-cpu.txt", "cpu"))
        equal = _close(told, on_cpu)
        said, why = (Said.EQUAL, "") if equal else (Said.OTHER, f"{told} and on the CPU {on_cpu}")
    return Result(program, said, " ".join(why.split())[:300], verdict, seconds)


def _output(words: list[str], file: Path, device: str) -> str:
    environment = {
        **{name: value for name, value in os.environ.items() if name != "DS_ACCELERATOR"},
        "REACH_DEVICE": device,
        "COLUMNS": "1000",
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
    }
    with file.open("w", encoding="utf-8") as output:
        command = [sys.executable, "-m", "streamrace", *words]
        try:
            subprocess.run(
                command, stdout=output, stderr=output, env=environment, stdin=subprocess.DEVNULL, timeout=PATIENCE_S,
                check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            output.write(f"\nError: ended after {PATIENCE_S} s\n")
    return file.read_text(encoding="utf-8", errors="replace")


def _last_error(output: str) -> str:
    errors = re.findall(r"^(?:\[rank\d+\]: )?((?:\w+\.)*\w*(?:Error|Exception)\b.*)", output, re.MULTILINE)
    return errors[-1] if errors else "it told no values"


def _close(told: list[str], on_cpu: list[str]) -> bool:
    numbers, others = ([float(word) for line in lines for word in line.split()] for lines in (told, on_cpu))
    return len(numbers) == len(others) > 0 and all(
        math.isclose(number, other, rel_tol=CLOSE, abs_tol=1e-7) for number, other in zip(numbers, others, strict=True)
    )
