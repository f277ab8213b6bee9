"""Where torch itself uses streams its line is a place of the race; where it only computes, the program's line is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from judged import story
from torch import nn
from world import races, together

from streamrace.trace.records import Stack


def small() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4)).cuda()


def train(rank: int, world: int, device: str, *, halved: bool) -> None:
    from torch.nn.parallel.distributed import DistributedDataParallel, _MixedPrecision

    half = _MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16) if halved else None
    model = DistributedDataParallel(small(), device_ids=[rank], mixed_precision=half)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        model(torch.ones(8, 8, device=device)).float().square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    dist.barrier()


def halved(rank: int, world: int, device: str) -> None:
    train(rank, world, device, halved=True)


def whole(rank: int, world: int, device: str) -> None:
    train(rank, world, device, halved=False)


def test_a_race_that_ddps_mixed_precision_makes_is_at_the_line_of_its_copy(tmp_path: Path) -> None:
    together(2, whole, tmp_path / "whole")
    assert races(tmp_path / "whole") == []
    together(2, halved, tmp_path / "halved")
    found = races(tmp_path / "halved")
    # What the optimizer writes, the copy reads.
    of_step = [one for one in found if one.first.kernel == "aten::_foreach_add_"]
    assert len(of_step) == 1
    first, second = of_step[0].first.stack, of_step[0].second.stack
    assert first[0].file.endswith("test_torchs_lines.py") and first[0].function == "train"  # not the optimizer's
    assert second[0].file == "torch/nn/parallel/distributed.py"
    assert second[0].function == "DistributedDataParallel._root_copy_hook"
    assert second[1] == first[0]._replace(line=second[1].line)  # the program's line, where it calls the model


def test_what_the_scaler_and_saved_tensors_do_is_at_their_lines_and_what_they_call_at_the_programs() -> None:
    model = small()
    optimizer, scaler = torch.optim.SGD(model.parameters(), lr=0.1), torch.amp.GradScaler("cuda")
    with story() as told:
        with torch.autograd.graph.save_on_cpu(pin_memory=True):
            loss = model(torch.ones(8, 8, device="cuda")).square().mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    stacks: dict[int, Any] = {one.id: one.frames for one in told.records if isinstance(one, Stack)}
    at: dict[str, set[str]] = {}
    for one in told.launches:
        at.setdefault(one.kernel.removeprefix("aten::"), set()).add(stacks[one.stack][0].file)
    assert at["_amp_update_scale_"] == {"torch/amp/grad_scaler.py"}
    assert at["cudaMemcpyAsync DtoH"] == at["cudaMemcpyAsync HtoD"] == {"torch/autograd/graph.py"}
    assert all(not file.startswith("torch/") for kernel in ("addmm", "mean", "mm") for file in at[kernel])
