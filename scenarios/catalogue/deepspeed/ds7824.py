"""ZeRO-3 leaf modules: two threads of autograd gather the parameters of a module with two outputs at once."""
# /// catalogue
# title = "ZeRO-3 leaf modules: two host threads gather the same parameters"
# mechanism = "The hooks of both outputs look up and change what is being gathered, in Python objects of the host, without a lock. No stream is concerned."
# threads = ["https://github.com/deepspeedai/DeepSpeed/issues/7824", "https://github.com/deepspeedai/DeepSpeed/pull/7825"]
# tried = "Run with 0.18.5, with each call's thread written down: autograd has one thread for a GPU, here as on a real one, and both hooks came from it, so they never met. What would race are Python objects, and not memory that streams use, which is what is judged."
# kind = "not-shown"
# known = "up to 0.18.5, as the thread says"
# affected = { packages = ["deepspeed==0.18.5"] }
# ranks = 2
# ///

import os

import deepspeed
import torch


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.gate = torch.nn.Linear(32, 4, bias=False)
        self.experts = torch.nn.ModuleList(torch.nn.Linear(32, 32, bias=False) for _ in range(4))

    def forward(self, x):
        logits = self.gate(x)
        for expert in self.experts:
            x = expert(x)
        return x.tanh(), logits


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = Block(), Block()

    def forward(self, x):
        x, first = self.first(x)
        x, second = self.second(x)
        return x.square().mean() + first.square().mean() + second.square().mean()


torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
deepspeed.init_distributed()
torch.manual_seed(0)
model = Net()
deepspeed.utils.set_z3_leaf_modules(model, [Block])
zero = {"stage": 3, "stage3_param_persistence_threshold": 0, "reduce_bucket_size": 4096}
config = {"train_micro_batch_size_per_gpu": 2, "zero_allow_untested_optimizer": True, "zero_optimization": zero}
engine, *_ = deepspeed.initialize(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=1.0), config=config)
for step in range(3):
    loss = engine(torch.randn(2, 32, device="cuda").requires_grad_())
    engine.backward(loss)
    engine.step()
    print(f"rank {engine.global_rank}, step {step}: loss {loss.item()!r}")
