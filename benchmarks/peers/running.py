"""Runs a suite of a peer's tests on the simulated GPU, and starts again behind a test that ended its processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

PATIENCE_S = 60
"""Of one test. The slowest takes a third of it."""


@dataclass(frozen=True)
class Result:
    """``said``: passed, skipped or failed; by the worst of the ranks. ``why``: the first error, or why it was skipped."""

    test: str
    said: str
    why: str
    seconds: float


def run(files: list[str], into: Path, *, ranks: int, gpus: int, at: Path, plugin: str, options: list[str]) -> list[Result]:
    """Run the tests of ``files``, which lie under ``at``; what they print stays under ``into``."""
    results: dict[str, Result] = {}
    into.mkdir(parents=True, exist_ok=True)
    for start in range(1000):
        folder = into / f"start{start}"
        folder.mkdir(parents=True)
        (into / "done.txt").write_text("\n".join(results), encoding="utf-8")
        words = ["--ranks", str(ranks)] if ranks > 1 else []
        words += ["--gpus", str(gpus)] if gpus > 1 else []
        words += ["-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "benchmarks.peers.plugin", "-p", f"benchmarks.peers.{plugin}", *options, *files]
        ended = _start([sys.executable, "-m", "streamrace", "device", *words], folder, into / "done.txt", at, ranks)
        new = merged(folder, ended)
        results |= new
        if not new or finished(folder):
            break
    return list(results.values())


def _start(command: list[str], folder: Path, done: Path, at: Path, ranks: int) -> str:
    """Return why it ended: what the runner did."""
    root = Path(__file__).resolve().parents[2]
    environment = {
        **os.environ,
        "PEERS_FOLDER": str(folder), "PEERS_DONE": str(done), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1",
        "PYTHONPATH": os.pathsep.join([str(root), str(at), os.environ.get("PYTHONPATH", "")]),
        "PYTHONDONTWRITEBYTECODE": "1",
    }  # fmt: skip
    with (folder / "output.txt").open("wb") as output:
        process = subprocess.Popen(
            command, cwd=at, env=environment, stdout=output, stderr=output, stdin=subprocess.DEVNULL,
            start_new_session=True,
        )  # fmt: skip
        seen, since = "", time.monotonic()
        why = "a process ended"
        while process.poll() is None:
            time.sleep(0.1)
            now = "".join(file.read_text(encoding="utf-8") for file in sorted(folder.glob("rank*.jsonl")))
            if now != seen:
                seen, since = now, time.monotonic()
            elif time.monotonic() - since > PATIENCE_S:
                why = f"no end after {PATIENCE_S} s"
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    return why


def lines(file: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


def finished(folder: Path) -> bool:
    return any("end" in line for line in lines(folder / "rank0.jsonl")) if (folder / "rank0.jsonl").exists() else False


def merged(folder: Path, ended: str) -> dict[str, Result]:
    worst = {"failed": 0, "skipped": 1, "passed": 2}
    results: dict[str, Result] = {}
    for file in sorted(folder.glob("rank*.jsonl")):
        began: dict[str, bool] = {}
        for line in lines(file):
            if "said" in line:
                one = Result(line["test"], line["said"], line["why"], line["seconds"])
                began.pop(one.test, None)
                known = results.get(one.test)
                if known is None or worst[one.said] < worst[known.said]:
                    results[one.test] = one
            elif "test" in line:
                began[line["test"]] = True
        for test in began:
            if test not in results or results[test].said != "failed":
                results[test] = Result(test, "failed", ended, 0.0)
    return results
