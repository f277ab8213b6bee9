"""``--format json`` of waits, fix, choose and memory: the file that is written on standard output, and nothing else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.warm import ROOT, shell, with_simulated_gpu

RACY = """
    import torch

    side = torch.cuda.Stream()
    weights = torch.zeros(8, device="cuda")
    weights += 1
    with torch.cuda.stream(side):
        average = weights * 2
    print("trained")
    torch.cuda.current_stream().wait_stream(side)
"""


def told(folder: Path, *words: str) -> str:
    """What a command prints on standard output, if it is well."""
    environment = {**shell(), "PYTHONPATH": str(ROOT)}
    started = with_simulated_gpu().start("-m", "streamrace", *words, folder=folder, environment=environment)
    done = started.completed()
    assert done.returncode == 0, done.stderr
    assert len(done.stderr.splitlines()) > 3  # what a person reads
    return done.stdout


def test_what_waits_and_fix_write_is_all_that_a_script_reads(check: Any) -> None:
    check.script(RACY)
    waits = told(check.folder, "waits", "--name", "waits", "--confirm", "0", "--format", "json", "train.py")
    assert waits == (check.folder / "runs/waits/waits.json").read_text()
    assert check("train.py").status == 1
    fixes = told(check.folder, "fix", "runs/it", "--format", "json")
    assert fixes == (check.folder / "runs/it/fix-1/fix.json").read_text()


def test_what_choose_and_memory_answer_is_all_that_a_script_reads(tmp_path: Path) -> None:
    choice = json.loads(told(tmp_path, "choose", "--model", "llama-65b", "--nodes", "4", "--format", "json"))
    assert (
        choice["sentence"].startswith("IIG (PaRO-IIG) is the fastest of the 5 that fit 80 GiB")
        and len(choice["strategies"]) == 15
    )
    memory = told(tmp_path, "memory", "--models", "llama-2-7b", "--format", "json")
    assert memory == (tmp_path / "runs/memory/report/findings.json").read_text()
    assert json.loads(memory)["study"] == "memory"
