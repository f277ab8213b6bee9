"""An activation is freed, and its memory used again, while the offloading stream still makes a clone of it."""

# /// catalogue
# title = "TRL: an activation's memory is used again while the offloading stream clones it"
# mechanism = """\
# A saved view at an offset is cloned on the offloading stream, and it is the clone that is kept until the copy to \
# the host is done. The activation itself is freed by the model, and the compute stream writes into its memory while \
# the clone is being made."""
# threads = ["https://github.com/huggingface/trl/pull/7195"]
# kind = "race"
# known = "1.12.0 and 1.13.0, earlier ones not tried; 1.14.0 is clean"
# affected = { packages = ["trl==1.13.0"] }
# fixed = { packages = ["trl==1.14.0"] }
# ranks = 1
# places = ["activation_offloading.py:pack_tensor", "trl7195_clone.py:<module>"]
# harm = "harmful"
# ci = true
# ///

import torch
from torch import nn
from trl.models.activation_offloading import OffloadActivations


class Rows(nn.Module):
    def forward(self, x):
        return x[1:].exp().mul(x[1:]) + x[:1]  # backward needs the view at an offset


torch.manual_seed(7)
model = nn.Sequential(nn.Linear(32, 32), Rows(), nn.Linear(32, 32), Rows()).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
batches = [torch.randn(16, 32).cuda() for _ in range(2)]
offload = OffloadActivations(min_offload_size=0)
losses = []
for batch in batches:
    with offload:
        loss = model(batch).square().mean()
        loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    losses.append(loss.detach())
print([loss.item() for loss in losses], [p.detach().double().sum().item() for p in model.parameters()])
