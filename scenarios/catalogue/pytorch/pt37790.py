"""DDP, the backward pass on a stream of the user's: the reducer's last callback ran on another stream."""
# /// catalogue
# title = "DDP: the optimizer's stream does not wait for the all-reduces"
# mechanism = "As the thread says: the callback at the end of the backward pass copied the reduced gradients on the default stream, and the stream on which the user runs forward, backward and optimizer did not wait for it."
# threads = ["https://github.com/pytorch/pytorch/issues/37790", "https://github.com/pytorch/pytorch/pull/40115"]
# kind = "not-shown"
# known = "as the thread says: before 1.6"
# affected = { packages = [] }
# ranks = 2
# tried = "The releases with the bug are older than those that the simulated GPU runs (2.5.1 to 2.14), and this is C++. The same program under 2.13.0 has no race: the callback runs on the stream that called backward()."
# ///

import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl")
torch.manual_seed(0)
layers = torch.nn.Sequential(*(torch.nn.Linear(32, 32, bias=False) for _ in range(3))).cuda()
own = torch.cuda.Stream()
own.wait_stream(torch.cuda.current_stream())
torch.manual_seed(1 + dist.get_rank())
batches = [torch.randn(8, 32).cuda() for _ in range(3)]
with torch.cuda.stream(own):
    model = DistributedDataParallel(layers, bucket_cap_mb=0.004)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    for batch in batches:
        model(batch).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
torch.cuda.synchronize()
print(dist.get_rank(), [layer.weight.double().sum().item() for layer in layers])
dist.destroy_process_group()
