"""DeepCompile with ZeRO-1/2: starting fails, and gradients that compiled code has reduced are reduced again.

No race is told of in the thread: the buffers are looked up with an index that is missing.
"""
# /// catalogue
# title = "DeepCompile with ZeRO-1/2: buffers of gradients that are not there yet"
# mechanism = "DeepCompile asks for the flat gradients before there are any, and the engine reduces what compiled code has reduced. The thread tells of no race."
# threads = ["https://github.com/deepspeedai/DeepSpeed/pull/7548"]
# tried = "Run with 0.17.4: DeepCompile's own extension is CUDA code that compiles the program's graph into calls of itself; the simulated GPU refuses it. By its thread it is a failing start, and no race."
# kind = "not-shown"
# known = "up to 0.17.5, as the thread says"
# affected = { packages = ["deepspeed==0.17.4"] }
# ranks = 2
# ///

import os

import deepspeed
import torch

torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
deepspeed.init_distributed()
torch.manual_seed(0)
model = torch.nn.Sequential()
for _ in range(3):
    model.extend([torch.nn.Linear(32, 32, bias=False), torch.nn.Tanh()])
config = {"train_micro_batch_size_per_gpu": 2, "zero_allow_untested_optimizer": True}
config |= {"zero_optimization": {"stage": 2, "reduce_bucket_size": 1024}, "compile": {"deepcompile": True}}
optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
engine.compile()
for step in range(3):
    loss = engine(torch.randn(2, 32, device="cuda")).square().mean()
    engine.backward(loss)
    engine.step()
    print(f"rank {engine.global_rank}, step {step}: loss {loss.item()!r}")
