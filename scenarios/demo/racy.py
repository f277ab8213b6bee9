"""A moving average of weights, on a stream of its own."""

import torch

side = torch.cuda.Stream()
weights = torch.zeros(1024, device="cuda")
for _ in range(3):
    weights += 1  # the optimizer's step
    with torch.cuda.stream(side):
        average = weights * 0.1
    torch.cuda.current_stream().wait_stream(side)
