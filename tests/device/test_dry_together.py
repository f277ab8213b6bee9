"""Several ranks of a dry run, such as one of each stage of a pipeline, record together what live ranks record."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest
from rehearsed import difference, live, rehearse_together, told

from streamrace.device.ranks import RankFailed

BEGIN = """
    import os
    import torch
    import torch.distributed as dist
    torch.manual_seed(5)
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group({backend})
    rank, world = dist.get_rank(), dist.get_world_size()
"""
PIPELINE = """
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B
    mesh = init_device_mesh("cuda", (4, world // 4), mesh_dim_names=("stage", "copy"))
    stage, copies = mesh.get_local_rank("stage"), mesh.get_group("copy")
    layers = [torch.nn.Linear(256, 256) for _ in range(2 + 3 * stage)]
    model = torch.nn.Sequential(*layers).cuda()
    here = torch.device("cuda", torch.cuda.current_device())
    shape = torch.empty(8, 256, device="meta", requires_grad=True)
    part = PipelineStage(model, stage, 4, here, shape, shape, group=mesh.get_group("stage"))
    schedule = Schedule1F1B(part, 6, loss_fn=torch.nn.functional.mse_loss)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    batch = torch.zeros(48, 256, device="cuda")
    for step in range(2):
        schedule.step(*([batch] if stage == 0 else []), **({"target": batch} if stage == 3 else {}))
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad, group=copies)
        optimizer.step()
        optimizer.zero_grad()
"""
PROGRAMS = {
    "a pipeline": PIPELINE,
    "messages and uneven work": """
        x = torch.ones(400_000, device="cuda")
        for turn in range(4):
            for _ in range(3 * rank):
                x.mul_(0.5)
            there, back = (rank + 1) % world, (rank - 1) % world
            got = torch.empty_like(x)
            works = dist.batch_isend_irecv([dist.P2POp(dist.irecv, got, back), dist.P2POp(dist.isend, x, there)])
            for work in works:
                work.wait()
            x = got + 1
            work = dist.all_reduce(x, async_op=True)
            y = torch.ones(1000, device="cuda") * rank
            work.wait()
            if rank == turn:
                torch.cuda.synchronize()
    """,
    "objects and counts of each rank": """
        told = [None] * world
        dist.all_gather_object(told, {"rank": rank})
        assert told == [{"rank": one} for one in range(world)], told
        listed = [f"from rank {rank}", rank]
        dist.broadcast_object_list(listed, src=2)
        assert listed == ["from rank 2", 2], listed
        if rank == 1:
            dist.send_object_list([[1, 2, 3]], dst=3)
        if rank == 3:
            listed = [None]
            dist.recv_object_list(listed, src=1)
            assert listed == [[1, 2, 3]], listed
        count = torch.tensor([rank + 1], device="cuda")
        most, mean = count.clone(), count.clone()
        dist.all_reduce(count)
        dist.all_reduce(most, op=dist.ReduceOp.MAX)
        dist.all_reduce(mean, op=dist.ReduceOp.AVG)
        assert (count.item(), most.item(), mean.item()) == (10, 4, 2)
        parts = [torch.empty(1, dtype=torch.long, device="cuda") for _ in range(world)]
        dist.all_gather(parts, torch.tensor([rank * rank], device="cuda"))
        assert [int(part) for part in parts] == [0, 1, 4, 9]
        length = torch.tensor([rank], device="cuda")
        if rank == 0:
            dist.broadcast(torch.tensor([7], device="cuda"), src=0)
        else:
            dist.broadcast(length, src=0)
            assert torch.zeros(int(length), device="cuda").numel() == 7
        hosts = torch.tensor([float(rank)])
        dist.all_reduce(hosts)
        assert hosts.item() == 6.0
        dist.barrier()
    """,
}
HOST = {"objects and counts of each rank": '"cpu:gloo,cuda:nccl"'}


def script(program: str, folder: Path, backend: str = '"nccl"') -> Path:
    file = folder / "script.py"
    file.write_text(textwrap.dedent(BEGIN.format(backend=backend)) + textwrap.dedent(program))
    return file


@pytest.mark.parametrize("program", PROGRAMS)
def test_ranks_that_run_together_record_what_live_ranks_do(program: str, tmp_path: Path) -> None:
    file = script(PROGRAMS[program], tmp_path, HOST.get(program, '"nccl"'))
    expected = live(file, (), tmp_path / "live", ranks=4)
    found = rehearse_together(file, (), tmp_path / "dry", ranks=4, running=4)
    for rank in range(4):
        wrong = difference(expected, found, rank=rank)
        assert not wrong, f"rank {rank}: {wrong}"
        assert len(told(found, rank=rank)) > 8


def test_one_rank_of_each_stage_records_what_it_does_among_all(tmp_path: Path) -> None:
    """Each stage has two replicas, of which the first one runs."""
    file = script(PIPELINE, tmp_path)
    expected = live(file, (), tmp_path / "live", ranks=8)
    found = rehearse_together(file, (), tmp_path / "dry", ranks=8, running=4)
    assert sorted(one.name for one in found.iterdir()) == [f"rank{rank}.trace" for rank in (0, 2, 4, 6)]
    for rank in (0, 2, 4, 6):
        wrong = difference(expected, found, rank=rank)
        assert not wrong, f"rank {rank}: {wrong}"


def test_a_rank_that_does_not_run_has_the_input_of_the_last_one_before_it_that_does(tmp_path: Path) -> None:
    program = """
        told = [None] * world
        dist.all_gather_object(told, rank)
        assert told == [0, 0, 2, 2, 4, 4, 6, 6], told
        count = torch.tensor([rank], device="cuda")
        dist.all_reduce(count)
        assert count.item() == 24
        if rank == 2:
            got = torch.ones(1, dtype=torch.long, device="cuda")
            dist.recv(got, src=3)
            print(got)  # nobody knows
    """
    found = rehearse_together(script(program, tmp_path), (), tmp_path / "dry", ranks=8, running=4)
    assert len(told(found, rank=6)) > 4


def test_stages_that_wait_for_each_other_are_named(tmp_path: Path) -> None:
    program = """
        x = torch.ones(400_000, device="cuda")
        dist.recv(x, src=1 - rank)
        torch.cuda.synchronize()
    """
    output = tmp_path / "output.txt"
    with pytest.raises(RankFailed):
        rehearse_together(script(program, tmp_path), (), tmp_path / "dry", ranks=2, running=2, output=output)
    assert "no rank can go on" in output.read_text()


def test_a_value_that_no_rank_sends_is_named(tmp_path: Path) -> None:
    program = """
        if rank == 0:
            dist.recv_object_list([None], src=1)
    """
    output = tmp_path / "output.txt"
    with pytest.raises(RankFailed):
        rehearse_together(script(program, tmp_path), (), tmp_path / "dry", ranks=2, running=2, output=output)
    assert "rank 0 waits for a value of rank 1 in a message that rank 1 does not make" in output.read_text()
