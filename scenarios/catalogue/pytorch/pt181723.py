"""make_graphed_callables: the gradients of two micro-batches are twice those of the second."""
# /// catalogue
# title = "make_graphed_callables: accumulated gradients are those of the last micro-batch, twice"
# mechanism = "Graphed.backward returns the graph's own gradient buffers. Autograd takes the first as the parameter's .grad; the next replay writes the same memory, and is then added to itself. With a .grad of its own beforehand (zeros), the buffers are added to that."
# threads = ["https://github.com/pytorch/pytorch/issues/181723", "https://github.com/NVIDIA/TransformerEngine/pull/2937"]
# kind = "arithmetic"
# known = "to 2.13.0 (2.13.0 was tried)"
# affected = { packages = [] }
# fixed = { packages = [], arguments = ["--own"] }
# ranks = 1
# ///

import sys
import warnings

import torch

from streamrace.detectors.values.answers import answer

warnings.filterwarnings("ignore", message="The AccumulateGrad node's stream does not match")
torch.manual_seed(0)
model, eager = torch.nn.Linear(32, 32).cuda(), torch.nn.Linear(32, 32).cuda()
eager.load_state_dict(model.state_dict())
graphed = torch.cuda.make_graphed_callables(model, (torch.ones(8, 32, device="cuda"),))
for parameter in model.parameters():
    parameter.grad = torch.zeros_like(parameter) if "--own" in sys.argv else None
for _ in range(2):
    batch = torch.randn(8, 32, device="cuda")
    for each in (graphed, eager):
        each(batch).square().mean().backward()
for (name, parameter), right in zip(model.named_parameters(), eager.parameters(), strict=True):
    answer(f"{name}.grad", parameter.grad, right.grad)
