"""Group offloading of a model that is blocks and nothing else: no group is waited for."""
# /// catalogue
# title = "diffusers: without a layer outside of the blocks no group's copy is waited for"
# mechanism = "Since 0.36.0 the group of what lies outside of the blocks is left out where it is empty, and with it the hook that learns the order for prefetching. Each group then copies itself on the copy stream, and its layer reads it at once: the wait is made for prefetched groups alone."
# threads = []
# kind = "open"
# known = "0.36.0 and 0.41.0, those between not tried; 0.35.0 has none"
# affected = { packages = ["diffusers==0.41.0"] }
# fixed = { packages = ["diffusers==0.41.0"], arguments = ["--cured"] }
# ranks = 1
# places = ["group_offloading.py:_transfer_tensor_to_device", "df_only_blocks.py:forward"]
# harm = "harmful"
# ///

import sys

import torch
from diffusers.hooks import apply_group_offloading
from diffusers.hooks.group_offloading import ModuleGroup
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(64, 64, bias=False) for _ in range(3))

    def forward(self, x):
        for block in self.blocks:
            x = block(x).tanh()
        return x


def waited_for(self, onload=ModuleGroup.onload_):
    onload(self)
    if self.stream is not None and self.onload_self:
        torch.cuda.current_stream().wait_stream(self.stream)


if "--cured" in sys.argv:
    ModuleGroup.onload_ = waited_for
torch.manual_seed(0)
model = Model()
apply_group_offloading(
    model,
    onload_device=torch.device("cuda"),
    offload_type="block_level",
    num_blocks_per_group=1,
    use_stream=True,
)
with torch.no_grad():
    batches = [torch.randn(8, 64).cuda() for _ in range(3)]
    print([model(batch).double().sum().item() for batch in batches])
