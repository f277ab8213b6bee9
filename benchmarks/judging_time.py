"""Measures whether judging a program takes longer than running it, but for the first second: the worst of many.

Judging is the time of ``streamrace check --witnesses 0`` less that of ``streamrace device --trace``; running is the
time of the latter. The time of the same command with an empty program is subtracted from both. Processor time of all
processes, medians of ``ROUNDS`` rounds.
"""

from __future__ import annotations

import resource
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median

from benchmarks.device_rows import shell
from benchmarks.figures import Figure
from streamrace.scenarios.catalogue.entry import Entry, entries

TRAINING = """
import torch
from torch import nn

torch.manual_seed(0)
block = nn.TransformerEncoderLayer(64, 4, 128, dropout=0.0, batch_first=True)
model = nn.Sequential(nn.Embedding(256, 64), nn.TransformerEncoder(block, 4), nn.Linear(64, 256)).cuda()
optimizer = torch.optim.AdamW(model.parameters())
for step in range(30):
    tokens = torch.randint(256, (4, 32)).cuda()
    loss = nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(step, loss.item())
"""

_EXAMPLES = Path(__file__).parents[1] / "examples"
EXAMPLES = [(_EXAMPLES / f"{name}.py", (), ranks) for name, ranks in (
    ("racy_prefetcher", 1), ("fixed_prefetcher", 1), ("fsdp2", 2), ("deepspeed_hpz", 4),
)]  # fmt: skip
ROUNDS = 3
STRIDED = """
import torch

for index in range(300):
    made = torch.zeros(64 + 8 * (index % 5), 96, device="cuda")
    read = made[:, ::2] + 1
    kept = (read * 2)[:, :3].clone()
    print(kept.sum().item())
"""


def measure(say: Callable[[str], None]) -> list[Figure]:
    """Measure the program whose judging exceeds its running most, among all; and a training on its own."""
    with tempfile.TemporaryDirectory() as folder:
        empty, training, strided = (Path(folder) / f"{name}.py" for name in ("empty", "training", "strided"))
        empty.write_text("import torch\n\ntorch.ones(1, device='cuda')\n")
        training.write_text(TRAINING)
        strided.write_text(STRIDED)
        own: list[tuple[Path, Sequence[str], int]] = [(training, (), 1), (strided, (), 1), *EXAMPLES]
        own += [(one.path, one.affected.arguments, one.ranks) for one in entries() if _is_here(one)]
        start = {ranks: _spent(empty, (), ranks, folder, say) for ranks in sorted({ranks for *_, ranks in own})}
        took: dict[str, tuple[float, float]] = {}
        for path, arguments, ranks in own:
            ran, checked = (
                spent - of_empty
                for spent, of_empty in zip(_spent(path, arguments, ranks, folder, say), start[ranks], strict=True)
            )
            took[path.name] = (checked - ran, ran)
    worst = max(took, key=lambda name: took[name][0] - took[name][1])
    judged, ran = took[worst]
    note = f"{worst}, of {len(took)} programs: judged in {judged:.2f} s, run in {ran:.2f} s"
    of_training = "judged in {:.2f} s, run in {:.2f} s".format(*took[training.name])
    trained = f"a training of 30 steps that reads each loss ({of_training})"
    return [
        Figure("judged", f"judging beside running, the worst ({note})", judged - ran, "s", 1.0),
        Figure("judged", trained, took[training.name][0] / took[training.name][1], "times", 1.0),
    ]


def _is_here(one: Entry) -> bool:
    """Check whether the entry runs with the installed packages."""
    return one.shown and not one.affected.packages


def _spent(
    path: Path, arguments: Sequence[str], ranks: int, folder: str, say: Callable[[str], None]
) -> tuple[float, float]:
    """Return the seconds of running and tracing the program, and of checking it."""
    say(f"judged: {path.name}")
    words = ("--ranks", str(ranks))
    kept = ("--witnesses", "0", "--runs", f"{folder}/runs", "--name", "judged", "--overwrite")
    rounds = [
        (
            _seconds("device", *words, "--trace", f"{folder}/trace", str(path), *arguments, folder=folder),
            _seconds("check", *kept, *words, str(path), *arguments, folder=folder),
        )
        for _ in range(ROUNDS)
    ]
    ran, checked = (median(column) for column in zip(*rounds, strict=True))
    return ran, checked


def _seconds(*words: str, folder: str) -> float:
    """Return the processor time, in seconds, of the command and all processes that it starts."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, "-m", "streamrace", *words]
    done = subprocess.run(command, cwd=folder, env=shell(), capture_output=True, text=True)
    if done.returncode not in (0, 1, 5, 6):  # a race, another kind of finding, a hang
        raise RuntimeError(f"{' '.join(words)}: exit status {done.returncode}: {done.stderr[-300:]}")
    now = resource.getrusage(resource.RUSAGE_CHILDREN)
    return now.ru_utime + now.ru_stime - before.ru_utime - before.ru_stime
