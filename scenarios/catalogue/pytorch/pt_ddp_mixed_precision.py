"""DDP with mixed_precision: parameters are cast on a stream that waits for nothing."""
# /// catalogue
# title = "DDP, mixed_precision: parameters are cast before the optimizer has written them"
# mechanism = "_root_copy_hook casts every parameter on _mp_stream, which never waits for the stream of the optimizer and of the passes: it reads weights of before the step, and writes into memory that forward and backward still read."
# threads = []
# kind = "open"
# known = "2.13.0; earlier ones not tried"
# affected = { packages = [] }
# fixed = { packages = [], arguments = ["--cured"] }
# ranks = 2
# places = ["pt_ddp_mixed_precision.py:<module>", "distributed.py:_root_copy_hook"]
# harm = "harmful"
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
model = DistributedDataParallel(
    layers, mixed_precision=_MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16)
)
if "--cured" in sys.argv:
    layers.register_forward_pre_hook(lambda *_: model._mp_stream.wait_stream(torch.cuda.current_stream()), prepend=True)
optimizer = torch.optim.SGD(model.parameters(), lr=5.0)
torch.manual_seed(1 + dist.get_rank())
batches = [torch.randn(8, 32).cuda() for _ in range(3)]
for batch in batches:
    model(batch).float().square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
torch.cuda.synchronize()
print(dist.get_rank(), [layer.weight.double().sum().item() for layer in layers])
dist.destroy_process_group()
