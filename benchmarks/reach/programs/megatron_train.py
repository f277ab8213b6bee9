"""Megatron-core's example ``run_simple_mcore_train_loop.py``, smaller: ``TENSOR PIPELINE``, sizes of groups."""

from __future__ import annotations

import os
import sys

import torch
from megatron.core import parallel_state
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig, finalize_model_grads
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.models.gpt.gpt_model import GPTModel
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.pipeline_parallel import get_forward_backward_func
from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed
from megatron.core.transformer.transformer_config import TransformerConfig
from shared import STEPS, tell

tensor, pipeline = map(int, sys.argv[1:3])
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
torch.distributed.init_process_group("nccl")
parallel_state.initialize_model_parallel(tensor, pipeline)
model_parallel_cuda_manual_seed(0)
config = TransformerConfig(
    num_layers=2, hidden_size=32, num_attention_heads=4, use_cpu_initialization=True, pipeline_dtype=torch.float32,
    hidden_dropout=0.0, attention_dropout=0.0, bias_dropout_fusion=False,
)  # fmt: skip
gpt = GPTModel(
    config, get_gpt_layer_local_spec(), vocab_size=64, max_sequence_length=16,
    pre_process=parallel_state.is_pipeline_first_stage(), post_process=parallel_state.is_pipeline_last_stage(),
).cuda()  # fmt: skip
model = DistributedDataParallel(config, DistributedDataParallelConfig(use_distributed_optimizer=True), gpt)
optimizer = get_megatron_optimizer(OptimizerConfig(lr=1e-3, use_distributed_optimizer=True), [model])
tokens = torch.randint(0, 64, (2, 17)).cuda()
places = torch.arange(16).expand(2, -1).cuda()
mask = torch.ones(2, 1, 16, 16, dtype=torch.bool).triu(1).cuda()


def step(_: object, model: torch.nn.Module) -> tuple[torch.Tensor, object]:
    output = model(tokens[:, :-1], places, mask, labels=tokens[:, 1:])
    return output, lambda losses: (losses.float().mean(), {"loss": losses.float().mean().item()})


losses = []
for _ in range(STEPS):
    model.zero_grad_buffer()
    optimizer.zero_grad()
    found = get_forward_backward_func()(
        forward_step_func=step, data_iterator=None, model=model, num_microbatches=2, seq_length=16,
        micro_batch_size=2, decoder_seq_length=16, forward_only=False,
    )  # fmt: skip
    finalize_model_grads([model])
    optimizer.step()
    losses += [sum(one["loss"] for one in found) / len(found)] if found else []
if losses and parallel_state.get_tensor_model_parallel_rank() == 0:
    tell(*losses)
torch.distributed.destroy_process_group()
