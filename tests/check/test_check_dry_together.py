"""``streamrace check --dry --ranks``: one rank of each stage of a pipeline, together."""

from __future__ import annotations

from typing import Any

import pytest

PIPELINE = """
    import os
    import torch
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B

    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl")
    mesh = init_device_mesh("cuda", (4, dist.get_world_size() // 4), mesh_dim_names=("stage", "copy"))
    stage, size = mesh.get_local_rank("stage"), 30_000
    with torch.device("cuda"):
        model = torch.nn.Sequential(*(torch.nn.Linear(size, size, bias=False) for _ in range(1 + (stage == 3))))
    here = torch.device("cuda", torch.cuda.current_device())
    part = PipelineStage(model, stage, 4, here, group=mesh.get_group("stage"))
    schedule = Schedule1F1B(part, MICRO_BATCHES, loss_fn=torch.nn.functional.mse_loss)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    batch = torch.zeros(64 * MICRO_BATCHES, size, device="cuda")
    for step in range(3):
        schedule.step(*([batch] if stage == 0 else []), **({"target": batch} if stage == 3 else {}))
        optimizer.step()
        optimizer.zero_grad()
    dist.destroy_process_group()
"""  # fmt: skip

# What rank 0 sends comes back by rank 1, and is then written on another stream.
THERE_AND_BACK = """
    import os
    import torch
    import torch.distributed as dist

    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl")
    x, y = (torch.ones(1_000_000, device="cuda") for _ in range(2))
    other = torch.cuda.Stream()
    torch.cuda.synchronize()
    if dist.get_rank() == 0:
        dist.send(x, 1)
        with torch.cuda.stream(other):
            dist.recv(y, 1)
            x.zero_()
    else:
        dist.recv(x, 0)
        dist.send(x, 0)
"""

OF_THE_LAST_STAGE = """
    import os
    import torch
    import torch.distributed as dist

    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl")
    x, rank = torch.ones(1_000_000, device="cuda"), dist.get_rank()
    torch.cuda.synchronize()
    if rank < 4:
        dist.send(x, rank + 4)
    else:
        dist.recv(x, rank - 4)
        with torch.cuda.stream(torch.cuda.Stream()):
            x.mul_(2)
"""


def test_a_pipeline_runs_as_one_rank_of_each_stage(check: Any) -> None:
    """1F1B of p stages and m micro-batches takes m + p - 1 passes of the slowest (arXiv 2104.04473, section 2.2)."""
    took = {}
    for micro_batches in (4, 8):
        script = check.script(PIPELINE.replace("MICRO_BATCHES", str(micro_batches)))
        done = check(
            "--dry", "--nodes", "2", "--gpus", "4", "--hardware", "h100", "--ranks", "4", "--overwrite", script
        )
        assert done.status == 0, done.err
        dry = done.findings["checked"]["dry"]
        assert (dry["ranks"], dry["nodes"], dry["running"], dry["fullest"]) == (8, 2, [0, 2, 4, 6], 6)
        took[micro_batches] = dry["step_ns"]
    assert "A dry run as ranks 0, 2, 4 and 6 of 8 on 2 nodes" in done.told
    assert "rank 6 computes the longest" in done.told and " times as long as rank 0" in done.told
    assert ", by rank 6" in done.told and done.findings["checked"]["seen"].endswith(" of 4 ranks")
    each = (took[8] - took[4]) / 4
    # The last stage has two layers, the other three one, and the first one computes no gradient of its input.
    assert took[4] == pytest.approx(each * (4 + 8 / 6), rel=0.02), took


def test_a_race_of_a_later_stage_is_found_with_its_rank(check: Any) -> None:
    script = check.script(OF_THE_LAST_STAGE)
    assert check("--dry", "--gpus", "8", script).status == 0
    done = check("--dry", "--gpus", "8", "--ranks", "2", "--overwrite", script)
    assert done.status == 1, done.err
    races = done.findings["races"]
    assert all(race["ranks"] == [4] for race in races)
    lines = [[race[side]["stack"][0]["line"] for side in ("first", "second")] for race in races]
    assert [12, 14] in lines, lines


def test_order_through_another_stage_counts_where_that_runs(check: Any) -> None:
    script = check.script(THERE_AND_BACK)
    assert check("--ranks", "2", "--witnesses", "0", script).status == 0
    assert check("--dry", "--gpus", "2", "--ranks", "2", "--overwrite", script).status == 0
    assert (
        check("--dry", "--gpus", "2", "--overwrite", script).status == 1
    )  # one rank alone does not see it: docs/concepts/dry.md


def test_ranks_that_are_not_equally_far_apart_are_refused(check: Any) -> None:
    done = check("--dry", "--gpus", "8", "--ranks", "3", check.script(OF_THE_LAST_STAGE))
    assert done.status == 2
    assert "--ranks 3 of 8 are not equally far apart: name a number of which 8 is a multiple" in done.err


def test_a_stage_that_fails_ends_the_others(check: Any) -> None:
    script = check.script(OF_THE_LAST_STAGE + "        raise ValueError('no layers')\n")
    done = check("--dry", "--gpus", "8", "--ranks", "2", script)
    assert done.status == 3 and "no layers" in done.err + done.out
    assert "rank 4 ended with exit status 1; the others were ended" in done.told
