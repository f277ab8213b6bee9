"""ZeRO-2 with overlap_comm reduces a bucket of gradients that other streams still fill.

Autograd runs each part of a backward pass on the stream of its forward pass, and a gradient is copied into the bucket there.
The reduction stream waits for the current stream only, and that is the one of the gradient that came after the bucket was
full. Here one of two branches runs on a stream of its own, waited for as it should be.
"""
# /// catalogue
# title = "ZeRO-2: a bucket is reduced before all streams have filled it"
# mechanism = "The reduction stream waits for the stream that is current when the bucket is full, and not for the other streams on which autograd's hooks copied gradients into it."
# threads = ["https://github.com/deepspeedai/DeepSpeed/issues/8061", "https://github.com/deepspeedai/DeepSpeed/pull/8080"]
# kind = "race"
# known = "up to 0.19.2; checked: 0.17.4, 0.18.3, 0.18.5, 0.19.0, 0.19.2, and 0.14.3, 0.16.5 and 0.19.3 have none"
# affected = { packages = ["deepspeed==0.19.0"] }
# fixed = { packages = ["deepspeed==0.19.8"] }
# ranks = 2
# places = ["stage_1_and_2.py:reduce_independent_p_g_buckets_and_remove_grads", "stage_1_and_2.py:average_tensor"]
# harm = "harmful"
# ///

import os

import deepspeed
import torch


class Branches(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.left, self.right = (torch.nn.Linear(32, 32, bias=False) for _ in range(3))
        self.side = torch.cuda.Stream()

    def forward(self, x):
        x, here = self.first(x).tanh(), torch.cuda.current_stream()
        self.side.wait_stream(here)
        with torch.cuda.stream(self.side):
            right = self.right(x)
        left = self.left(x)
        here.wait_stream(self.side)
        return left + right


torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
deepspeed.init_distributed()
torch.manual_seed(0)
model = Branches()
zero = {"stage": 2, "overlap_comm": True, "reduce_bucket_size": 2 * 32 * 32}  # a bucket for both branches
config = {"train_micro_batch_size_per_gpu": 2, "zero_allow_untested_optimizer": True, "zero_optimization": zero}
optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
torch.manual_seed(engine.global_rank)
for step in range(3):
    loss = engine(torch.randn(2, 32, device="cuda")).square().mean()
    engine.backward(loss)
    engine.step()
    torch.cuda.synchronize()
    print(f"rank {engine.global_rank}, step {step}: loss {loss.item()!r}")
