"""An asynchronous collective on a side stream, and the tensor dropped: the default stream gets its memory at once."""
# /// catalogue
# title = "async_op on a side stream: the tensor's memory is used again while it is reduced"
# mechanism = "Since 2.7 a collective keeps its tensors until wait(), and records no stream. wait() orders the stream that calls it, and drops them: the memory goes back to the stream that it was allocated on, which nothing has ordered."
# threads = ["https://github.com/pytorch/pytorch/issues/188655"]
# kind = "open"
# known = "2.13.0; held to be the user's part by the thread"
# affected = { packages = [] }
# fixed = { packages = [], arguments = ["--cured"] }
# ranks = 2
# places = ["pt188655.py:<module>", "pt188655.py:<module>"]
# harm = "harmful"
# ///

import os
import sys

import torch
import torch.distributed as dist

torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl")
torch.manual_seed(dist.get_rank())
main, side = torch.cuda.current_stream(), torch.cuda.Stream()
ones = torch.ones(4096, device="cuda")
gradient = ones + 1
side.wait_stream(main)
with torch.cuda.stream(side):
    work = dist.all_reduce(gradient, async_op=True)
    work.wait()
    if "--cured" in sys.argv:
        gradient.record_stream(side)
    del work, gradient
other = ones + 2
print(dist.get_rank(), other.sum().item())
dist.destroy_process_group()
