"""ZeRO-3 with hpZ gathers the secondary partition of a parameter before it has been copied there.

The forward pass copies each gathered parameter into the secondary partition on the compute stream; the backward pass
gathers from it on the all-gather stream, which never waits for the copy. Without prefetching and without keeping
parameters for reuse, each of them is copied and gathered again in each step, as in a model that is large.
"""
# /// catalogue
# title = "hpZ: the secondary partition is gathered before it is copied"
# mechanism = "The forward pass copies a parameter into its secondary partition on the compute stream, and the backward pass gathers it on the all-gather stream, which does not wait for the compute stream."
# threads = ["https://github.com/deepspeedai/DeepSpeed/issues/5059", "https://github.com/deepspeedai/DeepSpeed/pull/5216"]
# kind = "race"
# known = "0.13.2 to 0.13.4; checked: both, and 0.13.1 has none"
# affected = { packages = ["deepspeed==0.13.4"] }
# fixed = { packages = ["deepspeed==0.13.5"] }
# ranks = 2
# places = ["partition_parameters.py:_partition_param_sec", "partition_parameters.py:_dist_allgather_fn"]
# harm = "harmful"
# ci = true
# ///

import os

import deepspeed
import torch

torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
deepspeed.init_distributed()
torch.manual_seed(0)
zero = {
    "stage": 3,
    "zero_hpz_partition_size": 2,
    "stage3_param_persistence_threshold": 0,
    "stage3_max_reuse_distance": 0,
    "stage3_prefetch_bucket_size": 0,
    "reduce_bucket_size": 4096,
}
config = {"train_micro_batch_size_per_gpu": 2, "zero_allow_untested_optimizer": True, "zero_optimization": zero}
with deepspeed.zero.Init(config_dict_or_path=config):  # so that the backward pass uses the weights that it gathers
    model = torch.nn.Sequential()
    for _ in range(4):
        model.extend([torch.nn.Linear(32, 32, bias=False), torch.nn.Tanh()])
optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
torch.manual_seed(engine.global_rank)
for step in range(4):
    loss = engine(torch.randn(2, 32, device="cuda")).square().mean()
    engine.backward(loss)
    engine.step()
    torch.cuda.synchronize()  # what orders the next forward pass after the optimizer is another race (ds_second_race)
    print(f"rank {engine.global_rank}, step {step}: loss {loss.item()!r}")
