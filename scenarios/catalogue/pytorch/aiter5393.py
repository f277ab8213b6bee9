"""A workspace that is cached within a capture shares its memory with a temporary of the graph."""
# /// catalogue
# title = "A workspace cached within a CUDA graph's capture is overwritten by each replay"
# mechanism = "A cache (lru_cache) makes its workspace at the first call, which is within a capture: in the graph's pool it gets the memory of a temporary that was freed by then, and every replay writes the temporary there. Made before the capture, it has memory of its own. The mechanism of AITER's split-K buffers, which need an AMD GPU, with torch alone."
# threads = ["https://github.com/ROCm/aiter/pull/5393"]
# kind = "graph-memory"
# known = "every release of torch: the rule of a private pool"
# affected = { packages = [] }
# fixed = { packages = [], arguments = ["--before"] }
# ranks = 1
# ///

import functools
import sys

import torch


@functools.cache
def workspace() -> torch.Tensor:
    return torch.empty(1 << 12, device="cuda")


def product(x: torch.Tensor) -> torch.Tensor:
    total = (x * 2).sum()  # the product is a temporary
    workspace()
    return total


if "--before" in sys.argv:
    workspace()
x = torch.full((1 << 12,), 3.0, device="cuda")
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    total = product(x)
workspace().fill_(1234.5)
graph.replay()
print((workspace() != 1234.5).sum().item(), "of", workspace().numel(), "elements are overwritten")
