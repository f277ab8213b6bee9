"""Which GPU a rank uses: the first that it names, also where torch chooses for it; and random numbers on several."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.warm import with_simulated_gpu

pytestmark = pytest.mark.host

BEGIN = """
import json, os, sys
import torch
import torch.distributed as dist
rank = int(os.environ["RANK"])
told = {}
"""
END = """
with open(f"rank{rank}.json", "w") as file:
    json.dump(told, file)
dist.destroy_process_group() if dist.is_initialized() else None
"""

MESH = """
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, randn
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
told["before"] = torch.cuda.is_initialized()
torch.manual_seed(3)
told["seeded"] = torch.cuda.is_initialized()
mesh = dist.init_device_mesh("cuda", (2,))
told["current"] = torch.cuda.current_device()
told["state"] = torch.cuda.get_rng_state().view(torch.int64).tolist()
sharded = randn(8, 8, device_mesh=mesh, placements=[Shard(0)])
told["shard"], told["whole"] = sharded.to_local().tolist(), sharded.full_tensor().tolist()
told["replica"] = randn(8, 8, device_mesh=mesh, placements=[Replicate()]).to_local().tolist()
told["moved"] = torch.cuda.get_rng_state().view(torch.int64).tolist()
with torch.device("meta"):
    net = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
for layer in (*net, net):
    fully_shard(layer, mesh=mesh)
net.to_empty(device="cuda")
for layer in net:
    layer.reset_parameters()
told["weights"] = [one.full_tensor().tolist() for one in net.parameters()]
net(torch.ones(2, 8, device="cuda")).sum().backward()
columns = parallelize_module(
    nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8)).cuda(), mesh, {"0": ColwiseParallel(), "1": RowwiseParallel()}
)
told["columns"] = columns(torch.ones(2, 8, device="cuda")).tolist()
"""

NAMED = """
mine = f"cuda:{rank}"
one = torch.ones(4, device=mine)
told["current"], told["mine"] = torch.cuda.current_device(), one.device.index
dist.init_process_group("nccl")
dist.all_reduce(one)
weight = torch.ones(4, device=mine, requires_grad=True)
(weight * one).sum().backward()
side = torch.cuda.Stream(device=mine)
side.wait_stream(torch.cuda.current_stream(mine))
with torch.cuda.stream(side):
    there = one * 3
torch.cuda.current_stream(mine).wait_stream(side)
told["sums"] = [weight.grad.sum().item(), there.sum().item(), torch.empty_like(one).device.index]
told["memory"] = torch.cuda.memory_allocated(mine) > 0
try:
    torch.ones(4, device=f"cuda:{1 - rank}")
except RuntimeError as refused:
    told["refused"] = str(refused)
torch.cuda.set_device(1 - rank)
torch.cuda.synchronize()
told["other"] = torch.cuda.current_device()
"""

ORDERS = """
torch.cuda.set_device(0)
a = torch.ones(1000, device="cuda:1") if rank == 1 else None
if rank == 1:
    side = torch.cuda.Stream(device=1)
    host = torch.empty(1000, pin_memory=True)
    host.copy_(a * 2, non_blocking=True)
    torch.cuda.synchronize({of})
    told["read"] = host.sum().item()
"""


def ran(folder: Path, program: str, *words: str) -> list[dict[str, Any]]:
    (folder / "train.py").write_text(BEGIN + program + END)
    done = with_simulated_gpu().run("-m", "streamrace.device", "--ranks", "2", *words, "train.py", folder=folder)
    assert done.returncode == 0, done.stderr
    return [json.loads((folder / f"rank{rank}.json").read_text()) for rank in range(2)]


def test_the_device_waits_for_its_first_use_and_a_mesh_chooses_it(tmp_path: Path) -> None:
    """As on CUDA: so ``init_device_mesh`` sets the device, and seeds that came before are not lost."""
    first, second = ran(tmp_path, MESH)
    for rank, told in enumerate((first, second)):
        assert (told["before"], told["seeded"], told["current"]) == (False, False, rank)
        assert told["state"] == [3, 0] and told["moved"] == [3, 128]
        assert told["shard"] == first["whole"][4 * rank : 4 * rank + 4]
    assert first["shard"] != second["shard"]
    for what in ("whole", "replica", "weights", "columns"):
        assert first[what] == second[what]


def test_a_device_that_is_named_is_taken_without_being_current(tmp_path: Path) -> None:
    for rank, told in enumerate(ran(tmp_path, NAMED)):
        assert (told["current"], told["mine"], told["other"]) == (0, rank, 1 - rank)
        assert told["sums"] == [8.0, 24.0, rank] and told["memory"]
        assert f"this process uses cuda:{rank}, and a process has one simulated GPU: cuda:{1 - rank}" in told["refused"]


def test_to_wait_for_a_device_that_is_not_used_orders_nothing(tmp_path: Path) -> None:
    """The current one, where the work is on another: a mistake that hardware does not forgive."""
    from streamrace.detectors import find_races

    for number, (of, races) in enumerate((("", 1), ("1", 0))):
        folder = tmp_path / str(number)
        folder.mkdir()
        ran(folder, ORDERS.format(of=of), "--trace", "trace")
        assert len(find_races(folder / "trace")) == races
