"""Processes that a program starts itself: each has a GPU."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.warm import with_simulated_gpu

pytestmark = pytest.mark.host

PROGRAM = """
import os, sys
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

def ranks(rank, world, port):
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", rank=rank, world_size=world)
    one = torch.ones(4, device="cuda") * (rank + 1)
    dist.all_reduce(one)
    told(rank, one)
    dist.destroy_process_group()

def alone(rank):
    told(rank, torch.ones(2, device=f"cuda:{rank}"))

def told(rank, one):
    sys.stdout.write(f"{rank} {one.device} {one.sum().item()}\\n")

def by_hand(how, function):
    context = mp.get_context(how)
    started = [context.Process(target=function, args=(rank,)) for rank in range(2)]
    for one in started:
        one.start()
    for one in started:
        one.join()

if __name__ == "__main__":
    what, how = sys.argv[1:]
    if what == "ranks":
        from streamrace.device.ranks.ports import free_port

        mp.start_processes(ranks, args=(2, str(free_port())), nprocs=2, start_method=how)
    else:
        by_hand(how, globals()[what])
"""


def ran(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    (folder / "train.py").write_text(PROGRAM)
    return with_simulated_gpu().run("-m", "streamrace.device", "train.py", *words, folder=folder)


# A fork server starts a fresh interpreter too.
@pytest.mark.parametrize("how", [pytest.param("spawn", marks=pytest.mark.wide), "forkserver", "fork"])
def test_each_of_them_has_a_gpu(tmp_path: Path, how: str) -> None:
    for what, total in (("ranks", 12.0), ("alone", 2.0)):
        done = ran(tmp_path, what, how)
        assert done.returncode == 0, done.stderr
        for rank in (0, 1):
            assert f"{rank} cuda:{rank} {total}" in done.stdout
