"""DDP with a communication hook: from the second step on, gradients were not copied into the buckets any more."""
# /// catalogue
# title = "DDP: after a communication hook the buckets keep old gradients"
# mechanism = "As the thread says: the views of a bucket were made anew over the hook's result, so the next step's gradients were copied there, and the bucket that was reduced kept its old ones. No race: every copy is ordered."
# threads = ["https://github.com/pytorch/pytorch/pull/43307"]
# kind = "not-shown"
# known = "by its dates: during the development of 1.7, in no release"
# affected = { packages = [] }
# ranks = 2
# tried = "No release has the bug: the hook came with 1.7, and this with it. The same program under 2.13.0 has no race, and all its steps equal those without a hook."
# ///

import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl")
torch.manual_seed(0)
with_hook, without = (DistributedDataParallel(torch.nn.Linear(32, 32, bias=False).cuda()) for _ in range(2))
without.load_state_dict(with_hook.state_dict())


def hook(_, bucket):
    work = dist.all_reduce(bucket.buffer(), async_op=True)
    return work.get_future().then(lambda done: done.value()[0].clone() / dist.get_world_size())


with_hook.register_comm_hook(None, hook)
torch.manual_seed(1 + dist.get_rank())
for step in range(3):
    batch = torch.randn(8, 32).cuda()
    for model in (with_hook, without):
        model.zero_grad()
        model(batch).square().mean().backward()
        with torch.no_grad():
            model.module.weight -= model.module.weight.grad
    equal = torch.equal(with_hook.module.weight, without.module.weight)
    print(dist.get_rank(), step, equal, with_hook.module.weight.double().sum().item())
dist.destroy_process_group()
