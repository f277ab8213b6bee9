"""What the programs beside this one share: a step of a pipeline of four ranks, with two stages on each."""

import torch
from megatron.core import parallel_state
from megatron.core.enums import ModelType
from megatron.core.pipeline_parallel import get_forward_backward_func
from megatron.core.transformer import TransformerConfig
from megatron.core.transformer.module import MegatronModule


class Stage(MegatronModule):
    def __init__(self, config, number):
        super().__init__(config)
        self.vp_stage, self.model_type = number, ModelType.encoder_or_decoder
        self.linear = torch.nn.Linear(16, 16)

    def set_input_tensor(self, value):
        self.received = value[0] if isinstance(value, list) else value

    def forward(self, batch):
        return self.linear(batch if self.received is None else self.received).tanh()


def train(**how):
    """Prints the losses of the last stage. ``how``: further settings of TransformerConfig."""
    torch.distributed.init_process_group("nccl")
    torch.cuda.set_device(rank := torch.distributed.get_rank())
    stages = {"pipeline_model_parallel_size": 4, "virtual_pipeline_model_parallel_size": 2}
    parallel_state.initialize_model_parallel(**stages, create_gloo_process_groups=False)
    sizes = {"num_layers": 8, "hidden_size": 16, "num_attention_heads": 1, "moe_token_dispatcher_type": "alltoall"}
    config = TransformerConfig(**sizes, **stages, **how, pipeline_dtype=torch.float)
    config.microbatch_group_size_per_vp_stage = 4

    def step(batches, stage):
        return stage(next(batches)), lambda out: (out.square().mean(), {"loss": out.detach().square().mean()})

    torch.manual_seed(7)
    model = [Stage(config, number).cuda() for number in range(2)]
    batches = [iter([torch.randn(8, 1, 16).cuda() for _ in range(4)]) for _ in model]
    run = get_forward_backward_func()
    counts = {"num_microbatches": 4, "seq_length": 8, "micro_batch_size": 1}
    losses = run(forward_step_func=step, data_iterator=batches, model=model, **counts)
    print(rank, [loss["loss"].item() for loss in losses], flush=True)
