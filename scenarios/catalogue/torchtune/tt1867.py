"""Offloaded activations under checkpointing: an activation's memory is used again while backward reads it."""
# /// catalogue
# title = "torchtune: an offloaded activation is dropped while a recomputed view of it is still read"
# mechanism = "An activation that was brought back is kept until its backward node has run. A checkpoint's recomputation saves a view of it, which backward reads later; the next copy to the device is given its memory, on another stream."
# threads = ["https://github.com/pytorch/torchtune/pull/1867"]
# kind = "race"
# known = "0.3.1; earlier ones not tried; 0.5.0 is clean"
# affected = { packages = ["torchtune==0.3.1", "torchao==0.6.1"] }
# fixed = { packages = ["torchtune==0.5.0", "torchao==0.6.1"] }
# ranks = 1
# places = ["tt1867.py:<module>", "_activation_offloading.py:unpack_tensor_with_streams"]
# harm = "harmful"
# ///

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from torchtune.training import OffloadActivations

torch.manual_seed(7)
layers = nn.ModuleList(nn.Sequential(nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 32)) for _ in range(3)).cuda()
optimizer = torch.optim.SGD(layers.parameters(), lr=1.0)
batches = [torch.randn(16, 32).cuda() for _ in range(2)]
offload = OffloadActivations(use_streams=True, min_offload_size=0)
losses = []
for x in batches:
    x.requires_grad_()
    with offload:
        for layer in layers:
            x = checkpoint(layer, x, use_reentrant=False)
        loss = x.square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    losses.append(loss.detach())
print([loss.item() for loss in losses], [p.detach().double().sum().item() for p in layers.parameters()])
