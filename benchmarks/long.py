"""Measures long runs under ``streamrace check``: memory, size of the run's folder, time added to an operation.

The script is a training-like loop: a batch copied on its own stream, memory allocated and freed, a forward and a
backward pass, an optimizer, a loss that is read now and then; with several ranks an all-reduce of each gradient. The
baseline is the same script on the simulated GPU alone (``streamrace device``), in the same run.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from textwrap import dedent

from benchmarks.figures import Figure

FEW, MANY = 10_000, 100_000
RATIO = 1.1
ROUNDS = 3
_LOOK_S = 0.05
_STEP = 61  # operations, without the all-reduces
_STATUS = {"clean": 0, "fragile": 0, "racy": 1}
SCRIPT = dedent(
    """
    import os, sys
    import torch
    import torch.distributed as dist

    operations, how = int(sys.argv[1]), sys.argv[2]
    several = int(os.environ.get("WORLD_SIZE", "1")) > 1
    if several:
        dist.init_process_group("nccl")
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    torch.manual_seed(0)
    layers = [torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU()) for _ in range(4)]
    model = torch.nn.Sequential(*layers).to("cuda")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, foreach=False)
    beside, here = torch.cuda.Stream(), torch.cuda.current_stream()
    host = torch.ones(8, 64).pin_memory()
    seen = torch.zeros(8, 64, device="cuda")
    torch.cuda.synchronize()
    for step in range(operations // 61):
        with torch.cuda.stream(beside):
            batch = host.to("cuda", non_blocking=True)
            if how == "fragile":
                seen.add_(batch)
                seen.sum().item()
        if how == "fragile":
            batch = batch + seen
        if how != "racy":
            here.wait_stream(beside)
        batch.record_stream(here)
        loss = model(batch).square().mean()
        loss.backward()
        if several:
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad)
        optimizer.step()
        optimizer.zero_grad()
        if how == "fragile":
            beside.wait_stream(here)
        if step % 10 == 9:
            loss.item()
            torch.cuda.synchronize()
    torch.cuda.synchronize()
    """
).lstrip()


@dataclass(frozen=True)
class Long:
    """A measured run. ``command``: peak of the command's own process, which judges; ``largest``: peak of the largest
    process; both resident, in MiB. ``folder``: final bytes of the run's folder. ``seconds``: of processor time.
    """

    command: float
    largest: float
    folder: int
    seconds: float


def checked(how: str, operations: int, ranks: int, folder: Path, *, witnesses: int = 0) -> Long:
    """Run a check of the script and measure it. Raises RuntimeError where the check does not end as expected."""
    words = ["-m", "streamrace", "check", "--runs", str(folder / "runs"), "--name", "it", "--witnesses", str(witnesses)]
    words += ["--ranks", str(ranks)] if ranks > 1 else []
    command, largest, seconds = _run(how, operations, folder, words, _STATUS[how])
    left = sum(path.stat().st_size for path in (folder / "runs").rglob("*") if path.is_file())
    return Long(command, largest, left, seconds)


def alone(how: str, operations: int, ranks: int, folder: Path) -> float:
    """Return the seconds of processor time of the same script on the simulated GPU."""
    words = ["-m", "streamrace.device", *(["--ranks", str(ranks)] if ranks > 1 else [])]
    return _run(how, operations, folder, words, 0)[2]


def measure(say: Callable[[str], None]) -> list[Figure]:
    found: list[Figure] = []
    for how, ranks, witnesses, what in (
        ("clean", 1, 0, "1 rank"),
        ("clean", 2, 0, "2 ranks"),
        ("fragile", 1, 0, "1 rank, which rests on a read"),
        ("racy", 1, 8, "1 rank, its races witnessed"),
        ("racy", 2, 8, "2 ranks, their races witnessed"),
    ):
        both: list[Long] = []
        for operations in (FEW, MANY):
            say(f"long: {what}, {operations:,} operations")
            with tempfile.TemporaryDirectory() as folder:
                both.append(checked(how, operations, ranks, Path(folder), witnesses=witnesses))
        few, many = both
        for name, one, other in (
            ("of the largest process", few.largest, many.largest),
            ("of the command, which judges", few.command, many.command),
        ):
            note, of = f"{one:.0f} and {other:.0f} MiB", f"{what}: peak memory {name}"
            ratio = f"{of}, {MANY:,} operations against {FEW:,}"
            found.append(Figure("long", ratio, other / one, "times", RATIO, note))
        steps = ranks * (MANY // _STEP)
        found.append(Figure("long", f"{what}: the run's folder, by step and rank", many.folder / steps / 1024, "KiB"))
    return [*found, _added(1, say), _added(2, say)]


def _added(ranks: int, say: Callable[[str], None]) -> Figure:
    """Measure the time that a check adds, from 90,000 more operations of each rank, and their all-reduces."""
    added: list[float] = []
    for round_ in range(1, ROUNDS + 1):
        say(f"long: what a check adds, {ranks} ranks, round {round_} of {ROUNDS}")
        with tempfile.TemporaryDirectory() as made:
            folder = Path(made)
            with_ = [checked("clean", count, ranks, folder / f"{count}").seconds for count in (FEW, MANY)]
            without = [alone("clean", count, ranks, folder) for count in (FEW, MANY)]
        more = (with_[1] - with_[0]) - (without[1] - without[0])
        added.append(more / (MANY - FEW) * 1e6)
    note = f"processor time of all processes; median of {ROUNDS} rounds: {min(added):.0f} to {max(added):.0f} ms"
    what = f"what a check adds to 1,000 operations{f' of each of {ranks} ranks' if ranks > 1 else ', 1 rank'}"
    return Figure("long", what, median(added), "ms", None, note)


def _run(how: str, operations: int, folder: Path, words: list[str], status: int) -> tuple[float, float, float]:
    """Return the peaks of the process itself and of the largest one, MiB, and the processor time of all, seconds."""
    folder.mkdir(parents=True, exist_ok=True)
    script = folder / "train.py"
    script.write_text(SCRIPT, encoding="utf-8")
    environment = {name: value for name, value in os.environ.items() if name != "DS_ACCELERATOR"}  # DeepSpeed sets it
    before = os.times()
    with (folder / "said.txt").open("wb") as said:
        process = subprocess.Popen(
            [sys.executable, *words, str(script), str(operations), how], stdout=said, stderr=said, env=environment
        )
        peaks: dict[int, float] = {}
        while True:
            with suppress(subprocess.TimeoutExpired):
                process.wait(_LOOK_S)
                break
            for one in _family(process.pid):
                peaks[one] = max(peaks.get(one, 0.0), _peak(one))
    after = os.times()
    if process.returncode != status:
        text = (folder / "said.txt").read_text(encoding="utf-8", errors="replace")
        raise RuntimeError(f"{' '.join(words)} ended with {process.returncode}:\n{text}")
    seconds = after.children_user + after.children_system - before.children_user - before.children_system
    return peaks.get(process.pid, 0.0), max(peaks.values(), default=0.0), seconds


def _family(process: int) -> list[int]:
    """Return a process and all of its descendants."""
    found = [process]
    for one in found:  # grows
        with suppress(OSError):
            for task in Path(f"/proc/{one}/task").iterdir():
                found += map(int, (task / "children").read_text(encoding="ascii").split())
    return found


def _peak(process: int) -> float:
    """Return the peak resident memory so far, in MiB; 0 where the process has ended."""
    with suppress(OSError):
        if found := re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{process}/status").read_text(encoding="utf-8")):
            return int(found[1]) / 1024
    return 0.0
