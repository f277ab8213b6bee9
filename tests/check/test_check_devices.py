"""Programs with several devices in one process under ``check --gpus``: races across devices, and their right twins."""

from __future__ import annotations

import re

import pytest

from tests.check.conftest import Checking

TWO = ("--gpus", "2")

PEER = """
    import sys, torch

    right = sys.argv[1] == "right"
    x = torch.randn(256, 256, device="cuda:0")
    y = torch.empty(256, 256, device="cuda:1")
    with torch.cuda.device(1):
        side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream(1))
    y.copy_(x, non_blocking=True)  # copied
    if right:
        side.wait_stream(torch.cuda.current_stream(1))  # which the copy made wait for it
    with torch.cuda.stream(side):
        total = y.sum()  # read
    side.synchronize()
    print(total.item() == x.sum().item())
"""
PIPELINE = """
    import sys, torch

    right = sys.argv[1] == "right"
    stages = []
    for device in (0, 1):
        with torch.cuda.device(device):
            stages.append(torch.cuda.Stream())
    first = torch.randn(64, 64, device="cuda:0")
    second = torch.randn(64, 64, device="cuda:1")
    for device in (0, 1):
        torch.cuda.synchronize(device)
    for _ in range(3):
        with torch.cuda.stream(stages[0]):
            hidden = torch.randn(64, 64, device="cuda:0") @ first
            handed = hidden.to("cuda:1", non_blocking=True)  # copied
        if right:
            stages[1].wait_stream(torch.cuda.current_stream(1))
            handed.record_stream(stages[1])
        with torch.cuda.stream(stages[1]):
            out = handed @ second  # read
    for stage in stages:
        stage.synchronize()
    print(out.isfinite().all().item())
"""
RACES = {"peer": PEER, "pipeline": PIPELINE}


def line(program: str, mark: str) -> int:
    lines = program.strip().splitlines()
    return next(number for number, text in enumerate(lines, 1) if text.endswith(f"# {mark}"))


@pytest.mark.parametrize("name", RACES)
def test_a_race_across_devices_is_told_with_the_device_of_each_stream(name: str, check: Checking) -> None:
    program = RACES[name]
    done = check(*TWO, check.script(program), "wrong")
    assert (done.status, done.findings["verdict"]) == (1, "race"), done.out + done.err
    race = done.findings["races"][0]
    assert race["kind"] == "write-read"
    assert [race[side]["stack"][0]["line"] for side in ("first", "second")] == [
        line(program, "copied"),
        line(program, "read"),
    ]
    assert race["first"]["kernel"] == "cudaMemcpyAsync PtoP"
    assert race["first"]["stream"].startswith("cuda:0 ")
    assert race["second"]["stream"] == "cuda:1 stream 1"


@pytest.mark.parametrize("name", RACES)
def test_its_right_twin_is_clean(name: str, check: Checking) -> None:
    done = check(*TWO, check.script(RACES[name]), "right")
    assert (done.status, done.findings["verdict"]) == (0, "clean"), done.out + done.err
    assert "True" in done.out


def test_a_witness_and_a_cure_run_on_the_same_devices(check: Checking) -> None:
    done = check(*TWO, "--witnesses", "1", check.script(PEER), "wrong")
    (race,) = done.findings["races"]
    assert race["witness"]["verdict"] == "harmful"
    assert "cuda:1 stream 1 waits for the current stream" in done.told
    assert "--gpus 2 train.py wrong" in done.told


def test_without_the_option_a_second_device_is_refused_with_what_to_do(check: Checking) -> None:
    two_visible = check(check.script('import torch\ntorch.ones(1, device="cuda:0")\ntorch.ones(1, device="cuda:1")'))
    assert two_visible.status == 3
    assert "--gpus gives a process more" in two_visible.err
    three = 'import torch\nprint([torch.ones(1, device=f"cuda:{number}") for number in range(3)])'
    more = check(*TWO, "--overwrite", check.script(three))
    assert more.status == 3
    assert "invalid device ordinal" in more.out + more.err


def test_data_parallel_and_a_model_over_two_devices_are_clean_and_equal_the_cpu(check: Checking) -> None:
    program = """
        import copy
        import torch

        torch.manual_seed(0)
        layers = [torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4)]
        plain = torch.nn.Sequential(*layers)
        parallel = torch.nn.DataParallel(copy.deepcopy(plain).cuda(), [0, 1])
        first, second = copy.deepcopy(plain[:2]).to("cuda:0"), copy.deepcopy(plain[2]).to("cuda:1")
        for _ in range(2):
            batch = torch.randn(6, 8)
            losses = [
                plain(batch).square().sum(),
                parallel(batch.cuda()).square().sum(),
                second(first(batch.cuda()).to("cuda:1")).square().sum(),
            ]
            for loss in losses:
                loss.backward()
        assert torch.allclose(losses[0], losses[1].cpu()) and torch.allclose(losses[0], losses[2].cpu())
        theirs = [parallel.module.parameters(), (*first.parameters(), *second.parameters())]
        for others in theirs:
            for right, other in zip(plain.parameters(), others, strict=True):
                assert torch.allclose(right.grad, other.grad.cpu(), atol=1e-6)
        print("equal", {str(p.grad.device) for p in second.parameters()})
    """
    done = check(*TWO, check.script(program))
    assert (done.status, done.findings["verdict"]) == (0, "clean"), done.out + done.err
    assert "equal {'cuda:1'}" in done.out


def test_a_model_that_accelerate_dispatches_is_clean(check: Checking) -> None:
    program = """
        import torch
        from accelerate import dispatch_model

        torch.manual_seed(0)
        model = torch.nn.Sequential(*(torch.nn.Linear(8, 8) for _ in range(4)))
        batch = torch.randn(2, 8)
        right = model(batch)
        model = dispatch_model(model, {"0": 0, "1": 0, "2": 1, "3": 1})
        print(torch.allclose(model(batch.cuda(0)).cpu(), right, atol=1e-6))
    """
    done = check(*TWO, check.script(program))
    assert (done.status, done.findings["verdict"]) == (0, "clean"), done.out + done.err
    assert "True" in done.out


def test_ranks_with_two_devices_each_train_one_model_with_ddp(check: Checking) -> None:
    """As in torch's tutorial "Getting Started with DDP", "Combine DDP with Model Parallelism"."""
    program = """
        import os
        import torch
        import torch.distributed as dist

        rank = int(os.environ["RANK"])
        near, far = (torch.device("cuda", 2 * rank + place) for place in (0, 1))
        torch.cuda.set_device(near)
        dist.init_process_group("nccl")
        torch.manual_seed(0)

        class Model(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.first = torch.nn.Linear(8, 16).to(near)
                self.second = torch.nn.Linear(16, 4).to(far)

            def forward(self, x):
                return self.second(self.first(x.to(near)).relu().to(far))

        model = torch.nn.parallel.DistributedDataParallel(Model())
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        torch.manual_seed(rank)
        for _ in range(2):
            optimizer.zero_grad()
            model(torch.randn(6, 8)).square().mean().backward()
            optimizer.step()
        total = sum(parameter.detach().double().sum().cpu() for parameter in model.parameters())
        print("sum", total.item(), dist.get_rank())
        dist.destroy_process_group()
    """
    done = check(*TWO, "--ranks", "2", check.script(program))
    assert (done.status, done.findings["verdict"]) == (0, "clean"), done.out + done.err
    assert len(set(re.findall(r"sum (\S+) \d", done.out))) == 1


def test_emit_test_and_a_recording_say_that_they_have_one_device(check: Checking) -> None:
    recorded = check(*TWO, "--record", check.script(PEER), "wrong")
    assert recorded.status == 2
    assert "leave --gpus or --record out" in recorded.err
