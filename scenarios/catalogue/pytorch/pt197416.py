"""inductor writes a mutated input back after the program's own join of the streams.

A compiled function adds to its input on a side stream and lets the caller's stream wait for that one. AOTAutograd turns
the addition into a write to a new tensor; inductor copies that to the input on the side stream, but after the wait.
Whoever reads the input then may get what it held before.
"""
# /// catalogue
# title = "torch.compile: the write-back of a mutated input is not ordered by the program's join of streams"
# mechanism = "The graph's copy_ of the functionalised mutation runs on the side stream, issued after wait_stream, so the join covers the computation and not the write to the input."
# threads = ["https://github.com/pytorch/pytorch/issues/197416"]
# kind = "open"
# known = "2.13.0 was tried"
# affected = { packages = ["triton==3.9.0"] }
# fixed = { packages = ["triton==3.9.0"], arguments = ["--cured"] }
# ranks = 1
# compile = "inductor"
# places = ["pt197416.py:step", "pt197416.py:<module>"]
# harm = "harmful"
# ///

import sys

import torch

side = torch.cuda.Stream()


@torch.compile
def step(x, small):
    with torch.cuda.stream(side):
        x.add_(1)
    torch.cuda.current_stream().wait_stream(side)
    return small + 1


x, small = torch.zeros(4096, device="cuda"), torch.zeros(4, device="cuda")
torch.cuda.synchronize()
step(x, small)
if "--cured" in sys.argv:
    torch.cuda.current_stream().wait_stream(side)
print("sum:", x.clone().sum().item())
