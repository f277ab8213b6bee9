"""An interleaved pipeline sends shapes before tensors, and stages that are a message apart wait for each other."""

# /// catalogue
# title = "Megatron: an interleaved pipeline that also sends shapes waits in a circle"
# mechanism = """\
# With variable_seq_lengths each exchange is two batches: shapes, then tensors. The last stage but one sends the shape \
# of its first gradient in the batch that takes an activation's shape. The stage before it waits until its activation \
# is taken, which is in the second batch, and takes the gradient's shape only afterwards."""
# threads = ["https://github.com/NVIDIA/Megatron-LM/issues/5100", "https://github.com/NVIDIA/Megatron-LM/pull/5271"]
# kind = "hang"
# known = "core 0.16.1, the newest for Python 3.11; the cure is overlap_p2p_comm, which does not wait for each message"
# affected = { packages = ["megatron-core==0.16.1"] }
# fixed = { packages = ["megatron-core==0.16.1"], arguments = ["--cured"] }
# ranks = 4
# ///

import sys

import torch
from megatron.core import parallel_state
from megatron.core.enums import ModelType
from megatron.core.pipeline_parallel import get_forward_backward_func
from megatron.core.transformer import TransformerConfig
from megatron.core.transformer.module import MegatronModule

torch.distributed.init_process_group("nccl")
torch.cuda.set_device(rank := torch.distributed.get_rank())
stages = {"pipeline_model_parallel_size": 4, "virtual_pipeline_model_parallel_size": 2}
parallel_state.initialize_model_parallel(**stages, create_gloo_process_groups=False)
cured = "--cured" in sys.argv
messages = {"overlap_p2p_comm": cured, "batch_p2p_comm": not cured, "variable_seq_lengths": True}
sizes = {"num_layers": 8, "hidden_size": 16, "num_attention_heads": 1, "moe_token_dispatcher_type": "alltoall"}
config = TransformerConfig(**sizes, **stages, **messages, pipeline_dtype=torch.float)
config.microbatch_group_size_per_vp_stage = 4


class Stage(MegatronModule):
    def __init__(self, number):
        super().__init__(config)
        self.vp_stage, self.model_type = number, ModelType.encoder_or_decoder
        self.linear = torch.nn.Linear(16, 16)

    def set_input_tensor(self, value):
        self.received = value[0] if isinstance(value, list) else value

    def forward(self, batch):
        return self.linear(batch if self.received is None else self.received).tanh()


def step(batches, stage):
    return stage(next(batches)), lambda out: (out.square().mean(), {"loss": out.detach().square().mean()})


torch.manual_seed(7)
model = [Stage(number).cuda() for number in range(2)]
batches = [iter([torch.randn(8, 1, 16).cuda() for _ in range(4)]) for _ in model]
how = {"num_microbatches": 4, "seq_length": 8, "micro_batch_size": 1}
losses = get_forward_backward_func()(forward_step_func=step, data_iterator=batches, model=model, **how)
print(rank, [loss["loss"].item() for loss in losses], flush=True)
