"""Group offloading to disk: a layer's weights are dropped while it computes with them."""
# /// catalogue
# title = "diffusers: offloading to disk frees weights in use"
# mechanism = "A layer's weights were allocated on the copy stream. Offloading to disk drops them when the layer has been issued, and the next layer's copy is given the memory while the compute stream still reads it."
# threads = ["https://github.com/huggingface/diffusers/pull/14657"]
# kind = "race"
# known = "0.40.0; earlier ones not tried; 0.41.0 is clean"
# affected = { packages = ["diffusers==0.40.0"] }
# fixed = { packages = ["diffusers==0.41.0"] }
# ranks = 1
# places = ["df14657.py:<module>", "group_offloading.py:_onload_from_disk"]
# harm = "harmful"
# ///

import tempfile

import torch
from diffusers.hooks import apply_group_offloading
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(*(nn.Linear(64, 64, bias=False) for _ in range(4)))
with tempfile.TemporaryDirectory() as folder, torch.no_grad():
    apply_group_offloading(
        model,
        onload_device=torch.device("cuda"),
        offload_type="leaf_level",
        use_stream=True,
        offload_to_disk_path=folder,
    )
    batches = [torch.randn(8, 64).cuda() for _ in range(3)]
    print([model(batch).double().sum().item() for batch in batches])
