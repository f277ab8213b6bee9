"""Measures how soon a hang is told, and what the comparison of collectives costs a check that finds none."""

from __future__ import annotations

import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

from benchmarks.device_rows import shell
from benchmarks.figures import Figure
from streamrace.detectors.files import records_of
from streamrace.detectors.hang.detector import Hangs

LIMIT_S, LIMIT_PERCENT = 1.0, 2.0
ROUNDS = 5
_EXAMPLE = Path(__file__).resolve().parents[1] / "examples" / "fsdp2.py"
_STEPS = "".join(f"x = x * {factor}\ndist.all_reduce(x)\n" for factor in range(1, 25))
_PROGRAM = f"""
import time
import torch
import torch.distributed as dist

dist.init_process_group("nccl")
rank = dist.get_rank()
torch.cuda.set_device(rank)
x = torch.ones(8, device="cuda")
{_STEPS}
torch.cuda.synchronize()
groups = [dist.new_group([0, 1]), dist.new_group([0, 1])]
open(f"waits{{rank}}", "w").write(str(time.time()))
dist.all_reduce(x, group=groups[rank])
torch.cuda.synchronize()
"""


def measure(say: Callable[[str], None]) -> list[Figure]:
    """Measure both. Raises RuntimeError when a command does not end as expected."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        (place / "train.py").write_text(_PROGRAM)
        took: list[float] = []
        for round_ in range(ROUNDS):
            say(f"hang: round {round_ + 1} of {ROUNDS}")
            _check(place, 6, "train.py")
            ended = time.time()
            took.append(ended - max(float((place / f"waits{rank}").read_text()) for rank in range(2)))
        shares: list[float] = []
        for round_ in range(ROUNDS):
            say(f"hang: comparison, round {round_ + 1} of {ROUNDS}")
            before = _children()
            _check(place, 0, str(_EXAMPLE))
            whole = _children() - before
            records = {rank: list(each) for rank, each in records_of(place / "it" / "trace").items()}
            began = time.process_time()
            detector = Hangs()
            for rank, each in records.items():
                detector.feed(rank, each)
            detector.finish()
            shares.append(100 * (time.process_time() - began) / whole)
    told = f"median of {ROUNDS}: {min(took):.2f} to {max(took):.2f} s"
    share = f"median of {ROUNDS}: {min(shares):.2f} to {max(shares):.2f}"
    lines = _PROGRAM.count("\n")
    return [
        Figure("hang", f"a program of {lines} lines: from the last rank's wait to the end of the command", median(took),
               "s", LIMIT_S, told),
        Figure("hang", "FSDP2, 2 ranks: comparing collectives, of the processor time of a check", median(shares), "%",
               LIMIT_PERCENT, share),
    ]  # fmt: skip


def _check(folder: Path, status: int, program: str) -> None:
    words = ["--ranks", "2", "--runs", ".", "--name", "it", "--overwrite", "--keep-trace", "0", program]
    done = subprocess.run(
        [sys.executable, "-m", "streamrace", "check", *words],
        capture_output=True,
        text=True,
        env=shell(),
        cwd=folder,
    )
    if done.returncode != status:
        raise RuntimeError(f"{program} ended with {done.returncode}:\n{done.stdout}{done.stderr}")


def _children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
