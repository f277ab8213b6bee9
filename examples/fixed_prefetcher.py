"""The prefetcher of examples/racy_prefetcher.py with its two missing calls: no race.

Before a batch is used, the model's stream waits for the stream that copied it. And because the batch was allocated on
the copying stream, ``record_stream`` tells the allocator that the model's stream uses it too; otherwise its memory
could be given to the next batch too early.

    streamrace check examples/fixed_prefetcher.py

Verdict: clean, exit status 0.
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
            torch.cuda.current_stream().wait_stream(self.stream)
            batch = self.batch
            batch.record_stream(torch.cuda.current_stream())
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
