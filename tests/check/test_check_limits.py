"""What a small model cannot show: limits of its library that it never meets are named, and scaled to it on demand."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from streamrace.reports.data import limits
from tests.check.conftest import Checking
from tests.warm import shell, with_simulated_gpu

ZERO = """
    import os

    import deepspeed
    import torch

    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    deepspeed.init_distributed()
    torch.manual_seed(0)
    zero = {ZERO}
    config = {"train_micro_batch_size_per_gpu": 2, "zero_allow_untested_optimizer": True, "zero_optimization": zero}
    with deepspeed.zero.Init(config_dict_or_path=config, enabled=zero["stage"] == 3):
        model = torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(4)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
    for step in range(2):
        engine.backward(engine(torch.ones(2, 64, device="cuda")).sum())
        engine.step()
"""

DDP = """
    import os

    import torch
    import torch.distributed as dist

    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl")
    torch.manual_seed(0)
    layers = torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(4))).cuda()
    model = torch.nn.parallel.DistributedDataParallel(layers{SIZE})
    for step in range(3):
        model(torch.ones(2, 64, device="cuda")).sum().backward()
"""

FSDP = """
    import os

    import torch
    import torch.distributed as dist
    from torch.distributed.fsdp import FullyShardedDataParallel
    from torch.distributed.fsdp.wrap import size_based_auto_wrap_policy

    rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl")
    torch.manual_seed(0)
    layers = torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(4)))
    model = FullyShardedDataParallel(layers, auto_wrap_policy=size_based_auto_wrap_policy, device_id=rank)
    parts = sum(isinstance(each, FullyShardedDataParallel) for each in model.modules())
    model(torch.ones(2, 64, device="cuda")).sum().backward()
    print(f"{parts} parts")
"""

BENIGN = """
    side = torch.cuda.Stream()
    a = torch.zeros(8, device="cuda")
    torch.cuda.synchronize()
    a.fill_(0)
    with torch.cuda.stream(side):
        a * 2
"""

PARAMETERS = 4 * (64 * 64 + 64)


def zero(**options: object) -> str:
    return ZERO.replace("{ZERO}", repr(options))


def test_limits_of_zero_3_that_a_small_model_never_meets_are_named(check: Checking) -> None:
    check.script(zero(stage=3))
    done = check("--ranks", "2", "train.py")
    assert done.status == 0, done.err
    assert f"Not seen at this size: the model of {PARAMETERS:,} parameters stays below limits of DeepSpeed" in done.told
    for limit in (
        "stage3_max_live_parameters (1,000,000,000)",
        "stage3_prefetch_bucket_size (50,000,000)",
        "reduce_bucket_size (500,000,000)",
        "sub_group_size (1,000,000,000)",
        "stage3_param_persistence_threshold (100,000)",
    ):
        assert limit in done.told
    assert "add --scale-limits, or check the full size with --dry." in done.told

    text = (check.folder / "train.py").read_text()
    scaled = check("--ranks", "2", "--scale-limits", "--overwrite", "train.py")
    assert scaled.status == 0, scaled.err
    assert f"Limits of DeepSpeed are scaled to the model of {PARAMETERS:,} parameters (--scale-limits): " in scaled.told
    assert "stage3_max_live_parameters from 1,000,000,000 to 4,096" in scaled.told
    assert "stage3_param_persistence_threshold from 100,000 to 64" in scaled.told
    assert "Not seen at this size" not in scaled.told
    assert (check.folder / "train.py").read_text() == text, "the program is as it was"
    assert scaled.findings["scenario"]["scale_limits"] is True
    assert _launches(scaled.told) > _launches(done.told), "more is gathered, and more often"


def test_limits_that_the_model_meets_are_not_named(check: Checking) -> None:
    met = {"reduce_bucket_size": 4096, "allgather_bucket_size": 8192}
    check.script(zero(stage=2, **met))
    assert "Not seen at this size" not in check("--ranks", "2", "train.py").told
    check.script(zero(stage=2))
    done = check("--ranks", "2", "--overwrite", "train.py")
    assert "limits of DeepSpeed that a large one meets: reduce_bucket_size (500,000,000) and allgather" in done.told


@pytest.mark.parametrize(("size", "named"), [("", True), (", bucket_cap_mb=10", True), (", bucket_cap_mb=0.02", False)])
def test_a_model_that_fits_into_one_bucket_of_ddp(check: Checking, size: str, named: bool) -> None:
    check.script(DDP.replace("{SIZE}", size))
    done = check("--ranks", "2", "train.py")
    assert done.status == 0, done.err
    assert (f"limits of DDP that a large one meets: bucket_cap_mb ({size[-2:] or 25})" in done.told) == named
    if named:
        scaled = check("--ranks", "2", "--scale-limits", "--overwrite", "train.py")
        assert "Limits of DDP are scaled to the model" in scaled.told
        assert _launches(scaled.told) > _launches(done.told), "a bucket for each weight"


def test_benign_is_said_of_the_run_and_not_of_a_large_model(check: Checking) -> None:
    check.script(zero(stage=3) + BENIGN)
    done = check("--ranks", "2", "--witnesses", "2", "train.py")
    assert done.status == 1, done.err
    assert "Race 1 is benign in this run: " in done.told
    assert "In a large model it may do harm: this one stays below the limits that are named below." in done.told


@pytest.mark.release
@pytest.mark.timeout(600)
def test_the_race_of_a_large_model_is_found_in_a_small_one(check: Checking) -> None:
    """DeepSpeed issue 5059: only a model above the limits gathers in its backward pass what its forward pass copies."""
    check.script(zero(stage=3, zero_hpz_partition_size=2))
    old = ("--package", "deepspeed==0.13.4", "--ranks", "2", "--witnesses", "10", "--overwrite")
    small = check(*old, "train.py")
    assert small.status == 1 and "is benign in this run: " in small.told and "Known: ds5059" not in small.told
    large = check(*old, "--scale-limits", "train.py")
    assert large.status == 1 and "Known: ds5059, " in large.told
    assert "deepspeed 0.13.5 mends it, and this is 0.13.4: upgrade." in large.told
    (race,) = (race for race in large.findings["races"] if race["second"]["stack"][0]["line"] == 93)
    assert race["first"]["stack"][0]["line"] == 1643 and race["witness"]["verdict"] == "harmful"


def test_a_model_below_the_size_of_a_part_of_fsdp_is_divided_on_demand(check: Checking) -> None:
    check.script(FSDP)
    small = check("--ranks", "2", "train.py")
    assert "1 parts" in small.out
    assert "stays below limits of FSDP that a large one meets: min_num_params (100,000,000)." in small.told
    large = check("--ranks", "2", "--overwrite", "--scale-limits", "train.py")
    assert "5 parts" in large.out
    assert (
        "Limits of FSDP are scaled to the model of 16,640 parameters (--scale-limits): min_num_params from"
        in large.told
    )


def test_pages_and_the_text_for_an_issue_say_it(check: Checking) -> None:
    check.script(DDP.replace("{SIZE}", ""))
    check("--ranks", "2", "--report", "train.py")
    report = check.folder / "runs" / "it" / "report"
    for name in ("index.html", "report.md"):
        text = (report / name).read_text().replace("<wbr>", "").replace("\\_", "_")
        assert "stays below limits of DDP that a large one meets: bucket_cap_mb (25)" in text, name


def test_a_file_of_another_form_is_left_out(check: Checking) -> None:
    """The program could write there itself: what is no report of limits says nothing."""
    check.script(
        """
        import torch
        from pathlib import Path

        for file in Path("runs").rglob("trace"):
            file.with_name("limits.txt").write_text('[1]\\nnull\\n{"library": "x", "parameters": "many"}\\n')
        torch.ones(8, device="cuda").sum().item()
        """
    )
    done = check("train.py")
    assert done.status == 0 and "Not seen at this size" not in done.told


def test_numbers_that_are_none_are_left_out_too(tmp_path: Path) -> None:
    sound = {"library": "DDP", "parameters": 8, "never_met": {"bucket_cap_mb": 25}, "scaled": {}}
    wrong = [
        {**sound, "parameters": 1e999},
        {**sound, "never_met": {"a": float("nan")}},
        {**sound, "scaled": {"a": [1]}},
    ]
    lines = [json.dumps(each) for each in (*wrong, sound, sound)]
    (tmp_path / "limits.txt").write_text("\n".join(lines))
    (kept,) = limits.noted(tmp_path / "limits.txt")
    assert kept.model_dump() == sound


def test_a_bucket_size_that_is_given_by_position_is_scaled(check: Checking) -> None:
    """An argument too few is told by torch itself."""
    check.script(DDP.replace("{SIZE}", ", None, None, 0, True, True, None, 25"))
    assert "bucket_cap_mb from 25 to" in check("--ranks", "2", "--scale-limits", "train.py").told
    check.script(DDP.replace("(layers{SIZE})", "()"))
    failed = check("--ranks", "2", "--overwrite", "train.py")
    assert "missing 1 required positional argument: 'module'" in failed.err + failed.out


def test_a_test_cannot_scale_and_says_so(check: Checking) -> None:
    check.script(DDP.replace("{SIZE}", "") + BENIGN)
    check("--ranks", "2", "--scale-limits", "train.py")
    words = ("-m", "streamrace", "emit-test", "runs/it", "1")
    refused = with_simulated_gpu().run(*words, folder=check.folder, environment=shell())
    assert refused.returncode == 2
    assert "had --scale-limits, and a test has no such option" in refused.stderr


def _launches(told: str) -> int:
    return int(told.partition("Examined: ")[2].partition(" launches")[0].replace(",", ""))
