"""inductor's C++ kernel reads pinned memory before the copies from the GPU to it have ended.

A compiled function copies tensors to the host without blocking, records an event for each, waits for the events, and
joins the copies. inductor keeps the copies, drops the events, and fuses the rest into a kernel of the host that runs at
once.
"""
# /// catalogue
# title = "inductor: a kernel of the host reads what non-blocking copies are still writing"
# mechanism = "Event.record and Event.synchronize are not in the graph, and nothing else waits between copy_(..., non_blocking=True) into pinned memory and the C++ kernel that reads it."
# threads = ["https://github.com/pytorch/pytorch/issues/174695"]
# kind = "race"
# known = "2.10.0 was tried; 2.13.0 waits after each copy"
# affected = { packages = ["torch==2.10.0", "triton==3.9.0"] }
# fixed = { packages = ["triton==3.9.0"] }
# ranks = 1
# compile = "inductor"
# places = ["pt174695.py:gathered", "pt174695.py:gathered"]
# harm = "harmful"
# ///

import torch


@torch.compile
def gathered(tensors):
    copies, events = [], []
    for tensor in tensors:
        copies.append(tensor.to("cpu", non_blocking=True))
        events.append(torch.Event())
        events[-1].record()
    for event in events:
        event.synchronize()
    return torch.cat(copies)


tensors = [torch.full((1000,), float(number), device="cuda") for number in range(4)]
torch.cuda.synchronize()
print("sum:", gathered(tensors).sum().item())
