"""MiCS: a coalesced all-gather is waited for by a handle that waits for nothing, and layers compute with empty weights."""
# /// catalogue
# title = "MiCS: nobody waits for the coalesced all-gather"
# mechanism = "DeepSpeed keeps the handle of the last all-gather within torch's coalescing manager, which is none: its wait() raises, MiCS catches that and goes on. What would wait, the manager, is dropped."
# threads = ["https://github.com/deepspeedai/DeepSpeed/issues/5080"]
# kind = "open"
# known = "0.13.0 to 0.19.5, as far as it was tried (0.13.4, 0.14.3, 0.19.5); the wait of 0.12.6 raises instead; 0.19.8 has no MiCS any more"
# affected = { packages = ["deepspeed==0.19.5"] }
# fixed = { packages = ["deepspeed==0.19.5"], arguments = ["--cured"] }
# ranks = 2
# places = ["mics.py:_flat_all_gather_with_coalescing_manager", "linear.py:forward"]
# harm = "harmful"
# ///

import os
import sys

import deepspeed
import torch

if "--cured" in sys.argv:
    from deepspeed.runtime.zero.mics import MiCS_AllGatherCoalescedHandle as Handle

    def waited(self, wait=Handle.wait, **kwargs):
        torch.cuda.synchronize()
        wait(self, **kwargs)

    Handle.wait = waited
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
deepspeed.init_distributed("nccl")
torch.manual_seed(0)
config = {
    "train_micro_batch_size_per_gpu": 4,
    "bf16": {"enabled": True},
    "optimizer": {"type": "SGD", "params": {"lr": 1.0}},
    "zero_allow_untested_optimizer": True,
    "zero_optimization": {"stage": 3, "mics_shard_size": 2, "stage3_param_persistence_threshold": 0},
}
with deepspeed.zero.MiCS_Init(config_dict_or_path=config):
    model = torch.nn.Sequential(*(torch.nn.Linear(32, 32) for _ in range(3)))
engine, *_ = deepspeed.initialize(model=model, config=config, model_parameters=model.parameters())
torch.manual_seed(1 + torch.distributed.get_rank())
losses = []
for _ in range(3):
    loss = engine(torch.randn(4, 32).cuda().bfloat16()).float().square().mean()
    engine.backward(loss)
    engine.step()
    losses.append(loss.detach())
torch.cuda.synchronize()
print(torch.distributed.get_rank(), [loss.item() for loss in losses])
