"""Activations are offloaded by a stream that waits for the stream of the start, not for the one that computes."""

# /// catalogue
# title = "TRL: offloaded activations are ordered after the wrong stream"
# mechanism = """\
# OffloadActivations keeps the default stream that it finds when it is made. Where the model runs on another stream, \
# the copy to the host waits for a stream without work, and saves an activation before it is computed."""
# threads = ["https://github.com/huggingface/trl/pull/7195"]
# kind = "race"
# known = "1.12.0 and 1.13.0, earlier ones not tried; 1.14.0 is clean"
# affected = { packages = ["trl==1.13.0"] }
# fixed = { packages = ["trl==1.14.0"] }
# ranks = 1
# places = ["trl7195.py:<module>", "activation_offloading.py:pack_tensor"]
# harm = "harmful"
# ///

import torch
from torch import nn
from trl.models.activation_offloading import OffloadActivations

torch.manual_seed(7)
model = nn.Sequential(nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh()).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
batches = [torch.randn(16, 32).cuda() for _ in range(2)]
offload = OffloadActivations(min_offload_size=0)
torch.cuda.synchronize()
losses = []
with torch.cuda.stream(torch.cuda.Stream()):  # as FSDP2, checkpointing or a custom Function may do
    for batch in batches:
        with offload:
            loss = model(batch).square().mean()
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
    print([loss.item() for loss in losses], [p.detach().double().sum().item() for p in model.parameters()])
