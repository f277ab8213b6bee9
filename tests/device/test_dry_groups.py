"""A dry run as rank 0 of several records what rank 0 records among live ranks, alone in one process."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest
from rehearsed import difference, live, rehearse_apart, told

BEGIN = """
    import os
    import torch
    import torch.distributed as dist
    torch.manual_seed(5)
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group({backend})
    rank, world = dist.get_rank(), dist.get_world_size()
"""
PROGRAMS = {
    "collectives": """
        half = dist.new_group(list(range(world // 2)))
        other = dist.new_group(list(range(world // 2, world)))
        for size in (4, 4000, 400_000):
            one, many = torch.ones(size, device="cuda"), torch.empty(size * world, device="cuda")
            works = [dist.all_reduce(one, async_op=True), dist.all_gather_into_tensor(many, one, async_op=True)]
            dist.reduce_scatter_tensor(one, many, op=dist.ReduceOp.AVG)
            dist.broadcast(one, src=1)
            dist.all_gather(list(many.chunk(world)), one)
            dist.reduce(one, dst=0, op=dist.ReduceOp.MAX)
            dist.all_to_all_single(many, many.clone())
            dist.gather(one, list(many.chunk(world)) if rank == 0 else None, dst=0)
            dist.scatter(one, list(many.chunk(world)) if rank == 2 else None, src=2)
            for work in works:
                work.wait()
            group = half if rank < world // 2 else other
            dist.all_reduce(one, group=group)
        dist.barrier()
    """,
    "objects and the host's own tensors": """
        told = [None] * world
        dist.all_gather_object(told, {"what": "same on all", "size": 3})
        assert told == [{"what": "same on all", "size": 3}] * world
        listed = ["from rank 0", 17]
        dist.broadcast_object_list(listed, src=0)
        assert listed == ["from rank 0", 17]
        length = torch.tensor([40], device="cuda")
        dist.all_reduce(length, op=dist.ReduceOp.MAX)
        x = torch.zeros(int(length), device="cuda")
        count = torch.tensor(3)
        dist.all_reduce(count)
        assert count == 3 * world
        dist.barrier(dist.new_group(backend="gloo"))
    """,
    "DDP": """
        from torch.nn.parallel import DistributedDataParallel
        model = torch.nn.Sequential(*(torch.nn.Linear(128, 128) for _ in range(6))).cuda()
        model = DistributedDataParallel(model, device_ids=[torch.cuda.current_device()], bucket_cap_mb=0.1)
        optimizer = torch.optim.AdamW(model.parameters(), fused=True)
        for step in range(3):
            loss = model(torch.randn(16, 128).cuda()).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    """,
    "FSDP2": """
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
        from torch.nn import GELU, Linear, Sequential
        model = Sequential(*(Sequential(Linear(64, 128), GELU(), Linear(128, 64)) for _ in range(4))).cuda()
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        for block in model:
            fully_shard(block, mp_policy=policy)
        fully_shard(model, mp_policy=policy)
        optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
        for step in range(3):
            loss = model(torch.randn(16, 64).cuda()).square().mean()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
    """,
}
REALS = {"few": 1024, "all": 1 << 20}
HOST = {"objects and the host's own tensors": '"cpu:gloo,cuda:nccl"'}


def test_what_the_others_bring_is_what_this_rank_brings_and_no_more_is_known() -> None:
    import torch
    import torch.distributed as dist

    from streamrace.device import dry

    dry.install(dry.World(4, 2))
    dist.init_process_group("nccl")
    for reduction, expected in ((dist.ReduceOp.SUM, 12.0), (dist.ReduceOp.MAX, 3.0), (dist.ReduceOp.MIN, 3.0)):
        value = torch.tensor([3.0], device="cuda")
        dist.all_reduce(value, op=reduction)
        assert value.item() == expected
    gathered = torch.empty(4, device="cuda")
    dist.all_gather_into_tensor(gathered, torch.tensor([2.0], device="cuda"))
    assert gathered.tolist() == [2.0] * 4
    mine, theirs, got = (torch.tensor([1.0], device="cuda") for _ in range(3))
    dist.broadcast(mine, src=0)
    assert mine.item() == 1.0
    dist.broadcast(theirs, src=2)  # what this rank holds is a placeholder
    began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    began.record()
    works = [dist.isend(mine, 1), dist.irecv(got, 3)]
    for work in works:
        assert work is not None
        work.wait()
    ended.record()
    ended.synchronize()
    assert mine.item() == 1.0
    assert began.elapsed_time(ended) > 0
    for unknown in (theirs, got):
        with pytest.raises(RuntimeError, match="no values"):
            unknown.tolist()


@pytest.mark.parametrize("program", PROGRAMS)
def test_rank_0_alone_records_what_it_does_among_others(program: str, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    begin = BEGIN.format(backend=HOST.get(program, '"nccl"'))
    script.write_text(textwrap.dedent(begin) + textwrap.dedent(PROGRAMS[program]))
    expected = live(script, (), tmp_path / "live", ranks=4)
    for name, real in REALS.items():
        found = rehearse_apart(script, (), tmp_path / name, ranks=4, real=real)
        wrong = difference(expected, found)
        assert not wrong, f"{name}: {wrong}"
        assert len(told(found)) > 8
