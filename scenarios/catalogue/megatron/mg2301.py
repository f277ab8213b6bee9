"""Megatron: DDP is built on a new stream that neither waits for the parameters nor is waited for."""

# /// catalogue
# title = "Megatron: DDP is built on a stream that waits for nothing"
# mechanism = """\
# get_model of megatron/training builds DDP under a new stream. There it copies the parameters into its buffer, though \
# compute may still initialise them, and compute reads them there before they are copied."""
# threads = [
#     "https://github.com/NVIDIA/Megatron-LM/issues/2301",
#     "https://github.com/NVIDIA/Megatron-LM/issues/2044",
#     "https://github.com/NVIDIA/Megatron-LM/pull/2652",
#     "https://github.com/NVIDIA/Megatron-LM/pull/2852",
# ]
# kind = "not-shown"
# known = "as the threads say: the training script of 0.14.0 and 0.15.2, until 0.16.0"
# affected = { packages = ["megatron-core==0.15.2"] }
# ranks = 2
# tried = """\
# The wheels of megatron-core 0.13.1 to 0.16.1 hold megatron/core alone, and nothing in it builds DDP on a stream; \
# 0.17.0, the first with megatron/training, has the waits, as has megatron-bridge 0.3.0, the oldest that pip finds. \
# With the script's line in the program itself 0.15.2 races harmfully (the program's parameters against \
# param_and_grad_buffer.py:749), and is clean with both waits; but that line is the program's, and no release's."""
# ///

import torch
from megatron.core import parallel_state
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
from megatron.core.transformer import TransformerConfig

torch.distributed.init_process_group("nccl")
torch.cuda.set_device(rank := torch.distributed.get_rank())
parallel_state.initialize_model_parallel(create_gloo_process_groups=False)
torch.manual_seed(7)
model = torch.nn.Sequential(torch.nn.Linear(32, 32), torch.nn.ReLU(), torch.nn.Linear(32, 32)).cuda()
for parameter in model.parameters():
    parameter.data.mul_(2)
config = TransformerConfig(num_layers=1, hidden_size=32, num_attention_heads=1)
with torch.cuda.stream(torch.cuda.Stream()):  # the line of the script
    ddp = DistributedDataParallel(config, DistributedDataParallelConfig(use_distributed_optimizer=True), model)
sums = [parameter.detach().double().sum() for parameter in model.parameters()]
print(rank, [value.item() for value in sums], flush=True)
torch.distributed.destroy_process_group()
