"""``streamrace check --dry``: a program as rank 0 of many, in one process, on tensors that hold nothing."""

from __future__ import annotations

from typing import Any

import pytest
from test_check import LOGS, SUMS

from streamrace.reports.data import dry
from streamrace.reports.pages.serve import listed
from streamrace.repro.__main__ import main

# Sixteen ranks, 32 GB of parameters, and a step that reads nothing but what is printed.
LARGE = """
    import os
    import torch
    import torch.distributed as dist

    dist.init_process_group("nccl")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    assert (dist.get_world_size(), torch.cuda.device_count()) == (16, 4)
    weight = torch.nn.Parameter(torch.zeros(60_000, 60_000, device="cuda", dtype=torch.bfloat16))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    for step in range(3):
        x = torch.randn(8, 60_000, device="cuda", dtype=torch.bfloat16)
        loss = (x @ weight).square().mean()
        loss.backward()
        dist.all_reduce(weight.grad)
        optimizer.step()
        optimizer.zero_grad()
        print(f"step {step}: {loss.item():.3f}")
"""

READS = """
    import torch

    x = torch.ones(1000, 1000, device="cuda")
    if x.sum() > 0:
        print("it is positive")
"""


def test_a_job_that_no_host_could_hold_is_judged(check: Any) -> None:
    done = check("--report", "--dry", "--nodes", "4", "--gpus", "4", check.script(LARGE))
    assert done.status == 0, done.err
    assert done.out.startswith("step 0:   ?\n")
    dry = done.findings["checked"]["dry"]
    assert (dry["ranks"], dry["nodes"], dry["capacity"]) == (16, 4, 80 << 30)
    assert 13 << 30 < dry["peak"] < 15 << 30 and dry["step_ns"] > 1_000_000
    assert done.findings["checked"]["seen"].endswith(" of 1 rank")
    for words in (
        "A dry run as rank 0 of 16 on 4 nodes",
        "There are no witnesses",
        "GiB allocated of the 80 GiB of a GPU",
        "An optimizer step takes ",
    ):
        assert words in done.told
    assert done.findings["scenario"]["ranks"] == 16
    page = (check.folder / "runs" / "it" / "report" / "index.html").read_text()
    assert "A dry run as rank 0 of 16 on 4 nodes" in page and "An optimizer step takes " in page


def test_a_race_is_found_dry_with_both_lines(check: Any, capsys: pytest.CaptureFixture[str]) -> None:
    done = check("--dry", check.script(SUMS))
    assert done.status == 1, done.err
    (race,) = done.findings["races"]
    assert [race[side]["stack"][0]["line"] for side in ("first", "second")] == [7, 11]
    assert "witness" in done.told and not race["witness"]

    folder = check.folder / "runs" / "it"
    for earlier in (False, True):  # its folder is a run's, and no dry run's of a job; earlier ones had this file
        if earlier:
            (folder / "dry.json").write_text('{"step_ends": [], "capacity": 0}')
        assert not dry.is_dry(folder)
        assert [row.verdict for row in listed(folder.parent)] == ["race"]
    main(["explain", str(folder)])
    assert "it was made with --witnesses 0, or dry" in " ".join(capsys.readouterr().out.split())


def test_what_holds_by_chance_is_told_dry(check: Any) -> None:
    done = check("--dry", check.script(LOGS))
    assert (done.status, done.findings["verdict"]) == (0, "fragile"), done.err


def test_a_read_ends_it_with_the_line_that_asked(check: Any) -> None:
    done = check("--dry", check.script(READS))
    assert done.status == 3
    assert "a dry run has no values, and aten::_local_scalar_dense reads one at train.py:4 (<module>)" in done.err
    assert done.findings["verdict"] == "unknown"


def test_too_little_memory_is_told_as_live(check: Any) -> None:
    done = check("--dry", "--gpus", "4", "--nodes", "4", check.script(LARGE.replace("60_000", "220_000")))
    assert done.status == 3 and "OutOfMemoryError: CUDA out of memory" in done.err


def test_a_hardware_profile_says_how_long_a_step_takes_and_how_much_memory_there_is(check: Any) -> None:
    done = check("--dry", "--hardware", "v100", check.script(LARGE.replace("(16, 4)", "(1, 1)")))
    plain = check("--dry", "--overwrite", check.script(LARGE.replace("(16, 4)", "(1, 1)")))
    slow, fast = done.findings["checked"]["dry"], plain.findings["checked"]["dry"]
    assert slow["capacity"] == 32 << 30 and slow["step_ns"] > fast["step_ns"]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (("--nodes", "2"), "are a dry run's: add --dry"),
        (("--dry", "--hardware", "z80"), "there is no hardware profile 'z80'"),
        (("--dry", "--network", "100"), "a network belongs to a hardware profile"),
        (("--dry", "--ranks", "2"), "--ranks 2 of 1 are not equally far apart"),
        (("--dry", "--record"), "a dry run has no values, and a recording is made of them"),
    ],
)
def test_what_does_not_fit_together_is_one_sentence(check: Any, options: tuple[str, ...], sentence: str) -> None:
    done = check(*options, check.script(SUMS))
    assert done.status == 2 and sentence in done.err
