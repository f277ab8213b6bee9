"""A graph copies from pinned memory that its owner gave back: the next owner's values go to the device."""
# /// catalogue
# title = "A staging buffer in pinned memory is given back while a CUDA graph still copies from it"
# mechanism = "ONNX Runtime writes pointers into a pinned buffer, copies it to the device and gives it back at once. In a capture the copy is a node with the host's address: each replay reads what the next owner of the buffer has written. The buffer must live as long as the graph. The mechanism with torch alone."
# threads = ["https://github.com/microsoft/onnxruntime/pull/32121"]
# kind = "graph-memory"
# known = "every release of torch: the rule of what a graph copies"
# affected = { packages = [] }
# fixed = { packages = [], arguments = ["--kept"] }
# ranks = 1
# ///

import sys

import torch

COUNT = 1 << 12


def staged(value: float) -> torch.Tensor:
    return torch.full((COUNT,), value).pin_memory()


on_device, total = torch.empty(COUNT, device="cuda"), torch.zeros((), device="cuda")
staging = staged(3.0)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    on_device.copy_(staging, non_blocking=True)
    total.copy_(on_device.mean())
if "--kept" not in sys.argv:
    del staging
graph.replay()
torch.cuda.synchronize()
prefill = staged(7.0)  # another request, which needs pinned memory
graph.replay()
print("the graph copied 3.0; it now copies", total.item())
