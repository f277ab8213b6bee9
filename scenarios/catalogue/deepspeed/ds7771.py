"""ZenFlow: its counter of steps stands still, as the engine no longer calls its backward pass.

What it did there, count the step and choose anew what to update, is left out, so Adam's bias correction divides by zero.
"""
# /// catalogue
# title = "ZenFlow: its bookkeeping is left out of the backward pass"
# mechanism = "The engine calls autograd itself, and no longer the method in which ZenFlow counts its steps. The thread tells of no race."
# threads = ["https://github.com/deepspeedai/DeepSpeed/pull/7771", "https://github.com/deepspeedai/DeepSpeed/pull/7759"]
# tried = "Run with 0.19.0: no race until it ends, in the third step, as Adam is given step 0 and divides by zero; 0.19.8 runs on, and only reads of the host order its copies of gradients (fragile). It is a bug of bookkeeping, and what ZenFlow should have computed is not at hand without its own code."
# kind = "not-shown"
# known = "up to 0.19.1, as the thread says"
# affected = { packages = ["deepspeed==0.19.0"] }
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
zenflow = {
    "topk_ratio": 0.1,
    "update_interval": 4,
    "full_warm_up_rounds": 0,
    "overlap_step": False,
    "select_strategy": "step",
    "select_interval": 4,
}
zero = {"stage": 2, "offload_optimizer": {"device": "cpu", "pin_memory": True}, "zenflow": zenflow}
config = {"train_micro_batch_size_per_gpu": 2, "zero_optimization": zero, "zero_allow_untested_optimizer": True}
config |= {"bf16": {"enabled": True}, "optimizer": {"type": "AdamW", "params": {"lr": 0.05}}}
engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)
torch.manual_seed(engine.global_rank)
for step in range(5):
    loss = engine(torch.randn(2, 32, device="cuda", dtype=torch.bfloat16)).square().mean()
    engine.backward(loss)
    engine.step()
    print(f"rank {engine.global_rank}, step {step}: loss {loss.item()!r}")
