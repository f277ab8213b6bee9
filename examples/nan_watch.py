"""Where does the first NaN come from? The watch beside a plain training loop, on CPU or on any GPU.

The third batch holds one NaN, as a damaged file would give it. Without the watch one sees a loss of NaN. The watch
warns once, and says that the first bad value was in the batch of step 3, so it did not come from the model.

    python examples/nan_watch.py

Cause: bad data, exit status 0.
"""

import torch
from torch import nn

from streamrace import NanWatch

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
batches = [torch.randn(16, 8) for _ in range(5)]
batches[2][7, 3] = float("nan")

with NanWatch(model):
    for step, batch in enumerate(batches, start=1):
        loss = (model(batch) - batch.sum(dim=1, keepdim=True)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        print(f"step {step}: loss {loss.item():.4f}")
