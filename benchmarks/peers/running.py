"""Runs a suite of a peer's tests, and starts again behind a test that ended its processes."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.real_build.building import RealBuild
from tests.real_build.running import environment

PATIENCE_S = 120
"""Of one test; before the first it is five times as long, because the device may be built."""
MEMORY = 0.7
"""Share of the host's memory that the real build may use: it has 80 GB, and the simulated GPU what the host has."""
_ROOT = Path(__file__).resolve().parents[2]
_WORST = ("passed", "skipped", "failed")
_OF_ANOTHER = re.compile(r"a process ended|rank \d+ has ended|Connection closed by peer")
"""Errors of a rank that follow from those of another."""


@dataclass(frozen=True)
class Result:
    """The result of a test, by the worst of its ranks. ``said``: passed, skipped or failed; ``why``: if not passed."""

    test: str
    said: str
    why: str
    seconds: float = 0.0


def run(
    files: Sequence[str], into: Path, *, ranks: int, gpus: int, at: Path, plugin: str, options: Sequence[str],
    real: RealBuild | None = None,
) -> list[Result]:  # fmt: skip
    """Run the tests of ``files``, patterns of names under ``at``. What they print stays under ``into``.

    They run on the simulated GPU, or on the ``real`` build of torch, in one process. Raise RuntimeError if a start runs
    no further test, and some are left.
    """
    results: dict[str, Result] = {}
    into.mkdir(parents=True, exist_ok=True)
    if real:
        words, variables = [], environment(real, STREAMRACE_REAL_BUILD_DEVICES=str(gpus))
    else:
        words, variables = ["-m", "streamrace", "device"], dict(os.environ)
        words += [*(["--ranks", str(ranks)] if ranks > 1 else []), *(["--gpus", str(gpus)] if gpus > 1 else [])]
    words += ["-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "benchmarks.peers.plugin"]
    words += ["-p", f"benchmarks.peers.{plugin}", *options]
    words += sorted(str(file.relative_to(at)) for pattern in files for file in at.glob(pattern))
    finished = False
    while not finished:
        folder = into / f"start{len(list(into.glob('start*')))}"
        folder.mkdir()
        done = into / "done.txt"
        done.write_text("\n".join(results), encoding="utf-8")
        ended = _start([sys.executable, *words], variables, folder, done, at, share=MEMORY if real else 1)
        new, finished = _results(folder, ended)
        results |= new
        if not new and not finished:
            raise RuntimeError(f"{len(results)} tests ran, and then none: {folder / 'output.txt'} says why")
    return list(results.values())


def _start(
    command: Sequence[str], variables: Mapping[str, str], folder: Path, done: Path, at: Path, share: float
) -> str:
    """Return why a test without a result has none: its process ended, or was ended."""
    own = {
        **variables,
        "PEERS_FOLDER": str(folder), "PEERS_DONE": str(done), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1",
        "PYTHONPATH": os.pathsep.join([str(_ROOT), str(at), variables.get("PYTHONPATH", "")]),
    }  # fmt: skip
    with (folder / "output.txt").open("wb") as output:
        process = subprocess.Popen(
            command, cwd=at, env=own, stdout=output, stderr=output, stdin=subprocess.DEVNULL,
            start_new_session=True,
        )  # fmt: skip
        seen, since = 0, time.monotonic()
        while process.poll() is None:
            time.sleep(0.1)
            now = sum(file.stat().st_size for file in folder.glob("rank*.jsonl"))
            if now != seen:
                seen, since = now, time.monotonic()
                continue
            if too_much := _too_much(process.pid, time.monotonic() - since, share, started=bool(seen)):
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                return too_much
    return "a process ended"


def _too_much(process: int, seconds: float, share: float, started: bool) -> str:
    """Return which limit a test exceeds: that of time, or of the host's memory, which others use, too."""
    if seconds > PATIENCE_S * (1 if started else 5):
        return f"no end after {PATIENCE_S} s"
    resident = int(Path(f"/proc/{process}/statm").read_text().split()[1])
    return f"more than {share:.0%} of the host's memory" if resident > share * os.sysconf("SC_PHYS_PAGES") else ""


def _results(folder: Path, ended: str) -> tuple[dict[str, Result], bool]:
    """Return the results of one start by the tests' names, and whether all tests have run."""
    results: dict[str, Result] = {}
    finished = False
    for file in sorted(folder.glob("rank*.jsonl")):
        lines: list[dict[str, Any]] = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
        finished |= any("end" in line for line in lines)
        of_rank = {line["test"]: Result(line["test"], "failed", ended) for line in lines if "test" in line}
        of_rank |= {line["test"]: Result(**line) for line in lines if "said" in line}
        for test, result in of_rank.items():
            known = results.get(test)
            told_more = known is not None and result.said == known.said and _OF_ANOTHER.search(known.why)
            if known is None or told_more or _WORST.index(result.said) > _WORST.index(known.said):
                results[test] = result
    return results, finished
