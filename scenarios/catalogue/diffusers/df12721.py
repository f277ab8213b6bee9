"""Group offloading with record_stream: it records the copy's own stream, and a block's memory is used again while it computes."""
# /// catalogue
# title = "diffusers: record_stream of the wrong stream"
# mechanism = "With record_stream=True a weight is recorded on the stream that is current within the copy, which is the copy stream that allocated it: the compute stream is not told to the allocator, and the next group is copied over weights in use."
# threads = ["https://github.com/huggingface/diffusers/pull/12721"]
# kind = "race"
# known = "0.35.0; 0.36.0 is clean"
# affected = { packages = ["diffusers==0.35.0"] }
# fixed = { packages = ["diffusers==0.36.0"] }
# ranks = 1
# places = ["df12721.py:forward", "group_offloading.py:_transfer_tensor_to_device"]
# harm = "harmful"
# ///

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
    record_stream=True,
)
with torch.no_grad():
    batches = [torch.randn(8, 64).cuda() for _ in range(3)]
    print([model(batch).double().sum().item() for batch in batches])
