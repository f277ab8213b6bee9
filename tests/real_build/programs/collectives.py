"""Calls the collectives with numbers of several types on all ranks; prints what each rank gets."""

from __future__ import annotations

import os

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ReduceOp

torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl")
rank, world = dist.get_rank(), dist.get_world_size()


def tell(name: str, *tensors: Tensor) -> None:
    line = " ".join([f"rank {rank}: {name}", *(str(tensor.cpu().tolist()) for tensor in tensors)])
    print(line + "\n", end="", flush=True)  # one write, as ranks share a terminal


def mine(count: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return (torch.arange(count) + 10 * rank + 1).to(dtype).cuda()


for dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int32, torch.int64, torch.uint8):
    for operation in (ReduceOp.SUM, ReduceOp.PRODUCT, ReduceOp.MAX, ReduceOp.MIN, ReduceOp.AVG):
        x = mine(4, dtype)
        dist.all_reduce(x, operation)
        tell(f"all_reduce {operation} {dtype}", x)

x = mine(3) / 3
dist.all_reduce(x, dist._make_nccl_premul_sum(0.25))
tell("premultiplied", x)
x = mine(2)
dist.reduce(x, dst=1)
tell("reduce", x if rank == 1 else x[:0])
dist.broadcast(x, src=1)
tell("broadcast", x)
gathered = torch.zeros(2 * world, device="cuda")
dist.all_gather_into_tensor(gathered, mine(2))
tell("all_gather", gathered)
parts = [torch.zeros(2, device="cuda") for _ in range(world)]
dist.all_gather(parts, mine(2))
tell("all_gather list", *parts)
part = torch.zeros(2, dtype=torch.bfloat16, device="cuda")
dist.reduce_scatter_tensor(part, mine(2 * world, torch.bfloat16) / 7)
tell("reduce_scatter", part)
swapped = torch.zeros(world, device="cuda")
dist.all_to_all_single(swapped, mine(world))
tell("all_to_all", swapped)
if rank == 0:
    dist.send(mine(3), 1)
elif rank == 1:
    x = torch.zeros(3, device="cuda")
    dist.recv(x, 0)
    tell("recv", x)
ring = torch.zeros(2, device="cuda")
calls = [dist.P2POp(dist.isend, mine(2), (rank + 1) % world), dist.P2POp(dist.irecv, ring, (rank - 1) % world)]
for work in dist.batch_isend_irecv(calls):
    work.wait()
tell("ring", ring)
group = dist.new_group([1])
if rank == 1:
    x = mine(2)
    dist.all_reduce(x, group=group)
    tell("alone", x)
dist.barrier()
dist.destroy_process_group()
