"""Allocates memory on two streams, trains a little; prints the allocator's figures and which addresses return.

With ``--kept`` nothing goes back to the driver.
"""

from __future__ import annotations

import random
import sys

import torch
from torch import Tensor, nn

# The simulated device has the current figures of split blocks only, and no history of them.
_LEFT_OUT = ("inactive_split.", "inactive_split_bytes.")
seen: dict[int, int] = {}


def figures(when: str) -> None:
    for name, value in torch.cuda.memory_stats().items():
        if value and not (name.startswith(_LEFT_OUT) and not name.endswith("current")):
            print(when, name, value)


def place(tensor: Tensor) -> int:
    """Return the number of the tensor's address, in the order in which addresses were first given out."""
    return seen.setdefault(tensor.data_ptr(), len(seen))


def sizes() -> None:
    kept = [torch.empty(count, device="cuda") for count in (10, 1 << 20, 3 << 20, 30 << 20)]
    figures("sizes")
    del kept[1]
    kept += [torch.empty(count, device="cuda") for count in (1000, 200_000, 1 << 19)]
    print([place(one) for one in kept])
    figures("reused")


def side_stream() -> None:
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        first = torch.empty(10, device="cuda")
    print(place(first))
    first.record_stream(torch.cuda.default_stream())
    del first
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        print(place(torch.empty(10, device="cuda")))
    figures("side")


def at_random() -> None:
    drawn = random.Random(1)
    live: list[Tensor] = []
    for _ in range(300):
        if live and drawn.random() < 0.45:
            live.pop(drawn.randrange(len(live)))
        else:
            size = drawn.choice([5, 100, 600, 3000, 50_000, 300_000, 1 << 20, 3 << 20])
            live.append(torch.empty(drawn.randrange(size) + 1, dtype=torch.uint8, device="cuda"))
            print(place(live[-1]), end=" ")
    print()
    figures("random")


def training() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.LayerNorm(256), nn.Linear(256, 64)).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(3):
        batch = torch.randn(8, 64).cuda()
        (model(batch) - batch).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        figures("step")


for part in (sizes, side_stream, at_random, training):
    part()
    if "--kept" not in sys.argv:
        torch.cuda.empty_cache()
    seen.clear()  # which addresses the driver gives next is not torch's decision
    figures("emptied")
print(torch.cuda.mem_get_info())
