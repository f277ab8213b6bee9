"""A model's buffers are broadcast in the order in which the rank has registered them, which may differ."""

# /// catalogue
# title = "verl: buffers are broadcast in each rank's own order"
# mechanism = """\
# After the weights fsdp2_load_full_state_dict broadcasts the buffers of rank 0, in the order of named_buffers() on \
# each rank. The rotary embedding of Gemma 4 (transformers 5.5 and 5.6) registers its buffers in the order of a set of \
# names, and each process has a hash seed of its own: a broadcast meets that of a buffer of another size."""
# threads = ["https://github.com/verl-project/verl/issues/6365", "https://github.com/verl-project/verl/pull/6405"]
# kind = "hang"
# known = "0.7.1; 0.5.0 and 0.6.1 have the same lines; 0.8.0 sorts them by name"
# affected = { packages = ["verl==0.7.1"] }
# fixed = { packages = ["verl==0.8.0"] }
# ranks = 2
# ///

import torch
from torch import nn
from torch.distributed.fsdp import fully_shard
from verl.utils.fsdp_utils import fsdp2_load_full_state_dict


class Rotary(nn.Module):
    def __init__(self, sizes):
        super().__init__()
        for kind in sizes:
            self.register_buffer(f"{kind}_inv_freq", torch.rand(sizes[kind]), persistent=False)

    def forward(self, x):
        return x + self.full_attention_inv_freq.sum() + self.sliding_attention_inv_freq.sum()


torch.distributed.init_process_group("nccl")
torch.cuda.set_device(rank := torch.distributed.get_rank())
sizes = {"sliding_attention": 128, "full_attention": 256}
if rank:  # as with another hash seed: here all ranks have the same one
    sizes = dict(reversed(sizes.items()))
torch.manual_seed(7)
with torch.device("meta" if rank else "cpu"):
    model = nn.Sequential(nn.Linear(8, 8), Rotary(sizes))
weights = model.state_dict()
mesh = torch.distributed.init_device_mesh("cuda", (2,))
fully_shard(model, mesh=mesh)
fsdp2_load_full_state_dict(model, weights, mesh)
print(rank, model(torch.ones(1, 8).cuda()).sum().item(), flush=True)
torch.distributed.destroy_process_group()
