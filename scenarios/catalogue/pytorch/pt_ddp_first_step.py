"""DDP with mixed_precision: the first step's gradients are memory that nobody wrote."""
# /// catalogue
# title = "DDP, mixed_precision: the first all-reduce sums memory that nobody wrote"
# mechanism = "Reducer::set_mixed_precision_param_dtype casts each bucket into new memory and leaves the bucket's views at the old: backward writes there, the all-reduce reads the new. Right from the second step on, when buckets are made anew. Without it: the model in bfloat16 as a whole."
# threads = []
# kind = "uninitialised"
# known = "2.6.0 to 2.13.0 (2.6.0, 2.8.0 and 2.13.0 were tried)"
# affected = { packages = [] }
# fixed = { packages = [], arguments = ["--whole"] }
# ranks = 2
# ///

import os
import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.nn.parallel.distributed import _MixedPrecision

torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl")
torch.manual_seed(0)
layers = torch.nn.Sequential(*(torch.nn.Linear(32, 32, bias=False) for _ in range(2))).cuda()
if "--whole" in sys.argv:
    model = DistributedDataParallel(layers.bfloat16())
else:
    mixed = _MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16)
    model = DistributedDataParallel(layers, mixed_precision=mixed)
    # the race of pt_ddp_mixed_precision is another bug
    layers.register_forward_pre_hook(lambda *_: model._mp_stream.wait_stream(torch.cuda.current_stream()), prepend=True)
torch.manual_seed(1 + dist.get_rank())
batches = [torch.randn(8, 32).cuda().bfloat16() for _ in range(2)]
for batch in batches:
    model(batch).float().square().mean().backward()
    torch.cuda.synchronize()
    print(dist.get_rank(), [layer.weight.grad.double().norm().item() for layer in layers])
    model.zero_grad()
dist.destroy_process_group()
