"""Megatron's DDP, built on a stream of its own, adds up gradients there: their reduction waits for the default stream."""

# /// catalogue
# title = "Megatron DDP: the reduction waits for the default stream, not for the gradients"
# mechanism = """\
# A gradient hook runs on the stream on which DDP was built, as megatron/training builds it on one of its own. With \
# two instances of the distributed optimizer, start_grad_sync lets the stream of the reductions wait for \
# torch.cuda.default_stream() alone: it may reduce main_grad before the hook has added to it."""
# threads = ["https://github.com/NVIDIA/Megatron-LM/issues/3670"]
# kind = "open"
# known = "0.13.1 (the oldest tried) to 0.16.1; 0.17.0, which wants Python 3.12, waits for the current stream: the cure here"
# affected = { packages = ["megatron-core==0.16.1"] }
# fixed = { packages = ["megatron-core==0.16.1"], arguments = ["--cured"] }
# ranks = 2
# places = ["distributed_data_parallel.py:hook", "param_and_grad_buffer.py:466"]
# harm = "harmful"
# ///

import sys
from unittest import mock

import torch
from megatron.core import parallel_state
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
from megatron.core.distributed.param_and_grad_buffer import _ParamAndGradBucketGroup as Group
from megatron.core.transformer import TransformerConfig


def ordered(group, start=Group.start_grad_sync, **how):
    with mock.patch.object(torch.cuda, "default_stream", torch.cuda.current_stream):  # as 0.17.0 has it
        return start(group, **how)


if "--cured" in sys.argv:
    Group.start_grad_sync = ordered

torch.distributed.init_process_group("nccl")
torch.cuda.set_device(rank := torch.distributed.get_rank())
parallel_state.initialize_model_parallel(num_distributed_optimizer_instances=2, create_gloo_process_groups=False)
torch.manual_seed(7)
model = torch.nn.Sequential(torch.nn.Linear(32, 32), torch.nn.ReLU(), torch.nn.Linear(32, 32)).cuda()
config = TransformerConfig(num_layers=1, hidden_size=32, num_attention_heads=1)
how = {"overlap_grad_reduce": True, "use_distributed_optimizer": True, "average_in_collective": True}
how = DistributedDataParallelConfig(**how, num_distributed_optimizer_instances=2)
# As megatron/training does it: a stream of its own, which waits and is waited for.
side, main = torch.cuda.Stream(), torch.cuda.current_stream()
side.wait_stream(main)
with torch.cuda.stream(side):
    ddp = DistributedDataParallel(config, how, model)
main.wait_stream(side)
for batch in [torch.randn(4, 32).add(rank).cuda() for _ in range(2)]:  # the first is reduced in finish_grad_sync
    ddp.zero_grad_buffer()
    ddp(batch).square().mean().backward()
    ddp.finish_grad_sync()
    for parameter in model.parameters():
        parameter.data.sub_(parameter.main_grad)
sums = [parameter.detach().double().sum() for parameter in model.parameters()]
print(rank, [value.item() for value in sums], flush=True)
torch.distributed.destroy_process_group()
