"""``streamrace waits``: which waits of a program carry load, in its trace and in live runs without them."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from tests.warm import ROOT, shell, with_simulated_gpu

PROGRAM = """
    import torch

    side = torch.cuda.Stream()
    weights, kept = (torch.zeros(1024, device="cuda") for _ in range(2))
    for step in range(2):
        weights += 1
        side.wait_stream(torch.cuda.current_stream())  # carries load
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            average = weights * 0.1
        weights.record_stream(side)
        torch.cuda.current_stream().wait_stream(side)
    kept += 1
    print(weights.sum().item())
    with torch.cuda.stream(side):
        kept * 2
"""
# ZeRO as it is, as small as it may be. What a release says on the way is not ours.
ZERO = """
    import os, sys
    import deepspeed, torch

    small = {"reduce_bucket_size": 4096, "overlap_comm": True}
    gathered = {"stage3_max_live_parameters": 2048, "stage3_max_reuse_distance": 32}
    zero = {
        "zero2": {"stage": 2, "allgather_bucket_size": 4096, **small},
        "zero3": {"stage": 3, "stage3_param_persistence_threshold": 0, **small},
        "hpz": {"stage": 3, "zero_hpz_partition_size": 2, **small, **gathered},
    }
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    deepspeed.init_distributed()
    torch.manual_seed(0)
    config = {"train_micro_batch_size_per_gpu": 2, "bf16": {"enabled": True}}
    config |= {"optimizer": {"type": "AdamW"}, "zero_optimization": zero[sys.argv[1]]}
    model = torch.nn.Sequential(*(layer for _ in range(3) for layer in (torch.nn.Linear(32, 32), torch.nn.Tanh())))
    engine, *_ = deepspeed.initialize(model=model, config=config, model_parameters=model.parameters())
    for _ in range(2):
        loss = engine(torch.randn(2, 32, device="cuda", dtype=torch.bfloat16)).square().mean()
        engine.backward(loss)
        engine.step()
"""

Ran = tuple[subprocess.CompletedProcess[str], dict[str, Any]]
Run = Callable[..., Ran]


@pytest.fixture
def waits(tmp_path: Path) -> Run:
    def run(text: str, *options: str, arguments: tuple[str, ...] = ()) -> Ran:
        (tmp_path / "train.py").write_text(dedent(text).lstrip())
        environment = {**shell(), "PYTHONPATH": str(ROOT), "COLUMNS": "160"}
        words = ("-m", "streamrace", "waits", "--name", "it", *options, "train.py", *arguments)
        done = with_simulated_gpu().start(*words, folder=tmp_path, environment=environment).completed()
        file = tmp_path / "runs" / "it" / "waits.json"
        return done, json.loads(file.read_text()) if file.exists() else {}

    return run


def verdicts(found: dict[str, Any]) -> dict[str, str]:
    return {f"{one['line']} {one['how']}": one["verdict"] for one in found["waits"]}


def test_each_wait_has_its_verdict_and_live_runs_bear_it_out(waits: Run) -> None:
    done, found = waits(PROGRAM, "--confirm", "2", "--witnesses", "1", "--report")
    assert done.returncode == 0, done.stderr
    assert verdicts(found) == {
        "7 stream.wait_stream": "redundant",
        "8 stream.wait_stream": "redundant",
        "11 tensor.record_stream": "redundant",
        "12 stream.wait_stream": "carries load",
        "14 read": "fragile cover",
    }
    by_line = {one["line"]: one for one in found["waits"]}
    assert by_line[7]["chain"] == ["stream 1 waits for stream 'default' (train.py:8)"]
    assert by_line[12]["live"] == "agrees"
    assert by_line[12]["harm"] in ("harmful", "benign")
    assert by_line[12]["token"]
    assert by_line[14]["live"] == "not run"
    assert "a read's value" in by_line[14]["says"]
    assert sum(one["live"] == "agrees" for one in found["waits"]) == 2
    told = done.stdout.splitlines()[1]
    assert told.startswith("This program with these arguments (train.py), the branches that it took: ")
    assert "1 carries load, 1 fragile cover, 3 redundant" in done.stdout


def test_a_program_that_fails_has_no_wait_that_can_go(waits: Run) -> None:
    done, found = waits(f"{dedent(PROGRAM)}\nraise SystemExit(3)", "--confirm", "0")
    assert done.returncode == 3, done.stdout
    assert not found
    assert "Its waits were not judged. Unknown: the program ended early" in done.stdout


def test_nor_has_one_that_gives_the_device_nothing(waits: Run) -> None:
    done, found = waits("print('nothing')", "--confirm", "0")
    assert done.returncode == 4, done.stdout
    assert not found


def test_a_launcher_is_refused_in_a_sentence(waits: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"WORLD_SIZE": "2", "RANK": "0", "LOCAL_RANK": "0", "MASTER_ADDR": "x"}.items():
        monkeypatch.setitem(os.environ, name, value)
    done, _ = waits("pass")
    assert done.returncode == 2
    assert "say --ranks N" in done.stderr


FSDP = (ROOT / "examples" / "fsdp2.py").read_text()


@pytest.mark.wide
@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", ["fsdp2", "zero2", "zero3", "hpz"])
def test_every_verdict_of_stock_sharding_agrees_with_a_live_run_without_the_wait(waits: Run, kind: str) -> None:
    text = FSDP if kind == "fsdp2" else ZERO
    done, found = waits(text, "--ranks", "2", "--confirm", "99", "--witnesses", "0", arguments=(kind,))
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    tried = [one for one in found["waits"] if one["how"] not in ("read", "copy")]
    assert tried
    assert {one["live"] for one in tried} == {"agrees"}, [one for one in tried if one["live"] != "agrees"]
    assert found["together_live"] in ("agrees", "not run")
