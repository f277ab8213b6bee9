"""Group offloading: a block computes with weights that are still being copied."""
# /// catalogue
# title = "diffusers: the last prefetched group is used before its copy has arrived"
# mechanism = "A group that is prefetched is waited for by the host when the next one is. Behind the last one comes none: its first layer reads, on the compute stream, what the copy stream is writing."
# threads = ["https://github.com/huggingface/diffusers/pull/12077"]
# kind = "race"
# known = "0.34.0; 0.35.0 is clean"
# affected = { packages = ["diffusers==0.34.0"] }
# fixed = { packages = ["diffusers==0.35.0"] }
# ranks = 1
# places = ["group_offloading.py:onload_", "df12077.py:forward"]
# harm = "harmful"
# ///

import sys

import torch
from diffusers.hooks import apply_group_offloading
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(64, 64, bias=False)
        self.blocks = nn.ModuleList(nn.Linear(64, 64, bias=False) for _ in range(3))

    def forward(self, x):
        x = self.first(x)
        for block in self.blocks:
            x = block(x).tanh()
        return x


torch.manual_seed(0)
model = Model()
apply_group_offloading(
    model,
    onload_device=torch.device("cuda"),
    offload_type="block_level",
    num_blocks_per_group=1,
    use_stream=True,
    record_stream="--record-stream" in sys.argv,
)
with torch.no_grad():
    batches = [torch.randn(8, 64).cuda() for _ in range(3)]
    print([model(batch).double().sum().item() for batch in batches])
