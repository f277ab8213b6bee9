"""An encoder behind one CUDA graph serves callers on several streams: the next one overwrites what the last one copies."""
# /// catalogue
# title = "A graphed encoder's static buffers are written by the next caller before the last one has copied its result"
# mechanism = "The encoder copies its input into a static buffer, replays the graph and clones the static output, all on the caller's stream, under a lock of the host. The clone has only been issued when the lock is released: the next caller, on another stream, writes the buffers while the graph still reads them. The cure records an event behind each clone and waits for it. The mechanism with torch alone."
# threads = ["https://github.com/sgl-project/sglang-omni/pull/1369"]
# kind = "open"
# known = "the pull request's first version, found in its review"
# affected = { packages = [] }
# fixed = { packages = [], arguments = ["--ordered"] }
# ranks = 1
# places = ["sglangomni1369.py:Encoder.__init__", "sglangomni1369.py:Encoder.__call__"]
# harm = "harmful"
# ///

import sys

import torch

ROWS, FEATURES = 64, 256


class Encoder:
    def __init__(self) -> None:
        self.copied = torch.cuda.Event()
        self.weight = torch.full((FEATURES, FEATURES), 0.5, device="cuda")
        self.inputs = torch.zeros(ROWS, FEATURES, device="cuda")
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.outputs = self.inputs @ self.weight
        torch.cuda.synchronize()

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        if "--ordered" in sys.argv:
            self.copied.wait()
        self.inputs.copy_(x)
        self.graph.replay()
        encoded = self.outputs.clone()
        self.copied.record()
        return encoded


encoder = Encoder()
results = []
for number in (1.0, 2.0):
    with torch.cuda.stream(torch.cuda.Stream()):
        results.append(encoder(torch.full((ROWS, FEATURES), number, device="cuda")))
torch.cuda.synchronize()
print("the means are", [result.mean().item() for result in results])
