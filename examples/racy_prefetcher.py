"""A data prefetcher with a race: nothing makes the training wait until its batch has arrived.

The next batch is copied to the GPU on a stream of its own, while the model computes. The model's stream never waits for
that copy. On most machines the copy happens to be fast enough, so the losses look right; the check finds the race all
the same, names both lines and the missing wait, and shows that another timing changes the loss.

    streamrace check examples/racy_prefetcher.py

Verdict: race, exit status 1. The fixed version is examples/fixed_prefetcher.py.
"""

import torch
from torch import nn


class Prefetcher:
    """Gives batches on the GPU, and copies the next one while the last one is used."""

    def __init__(self, batches):
        self.batches = iter(batches)
        self.stream = torch.cuda.Stream()
        self.fetch()

    def fetch(self):
        batch = next(self.batches, None)
        with torch.cuda.stream(self.stream):
            self.batch = None if batch is None else batch.to("cuda", non_blocking=True)

    def __iter__(self):
        while self.batch is not None:
            batch = self.batch  # missing: torch.cuda.current_stream().wait_stream(self.stream)
            self.fetch()
            yield batch


torch.manual_seed(0)
batches = [torch.randn(64, 256).pin_memory() for _ in range(4)]
model = nn.Linear(256, 256).to("cuda")
losses = []
for batch in Prefetcher(batches):
    loss = (model(batch) - batch).square().mean()
    loss.backward()
    losses.append(loss.detach())
torch.cuda.synchronize()
for step, loss in enumerate(losses, start=1):
    print(f"step {step}: loss {loss.item():.6f}")
