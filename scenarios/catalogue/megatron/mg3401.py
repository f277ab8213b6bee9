"""A pipeline's stage without experts makes a tracker of auxiliary losses that is shorter than that of the other stages."""

# /// catalogue
# title = "Megatron: stages of a pipeline sum auxiliary losses of different lengths"
# mechanism = """\
# With multi-token prediction a router makes the tracker as long as the layers and those of the prediction. A stage \
# without experts has no tracker when the losses are logged, and track_moe_metrics makes one as long as the layers \
# alone. Both are summed over the pipeline in one all-reduce."""
# threads = ["https://github.com/NVIDIA/Megatron-LM/pull/3401", "https://github.com/NVIDIA/Megatron-LM/pull/3400"]
# kind = "hang"
# known = "core 0.16.1; 0.17.0, which wants Python 3.12, makes it as long on all stages: the cure here"
# affected = { packages = ["megatron-core==0.16.1"] }
# fixed = { packages = ["megatron-core==0.16.1"], arguments = ["--cured"] }
# ranks = 2
# ///

import sys

import torch
from megatron.core import parallel_state
from megatron.core.transformer import TransformerConfig
from megatron.core.transformer.moe import moe_utils
from megatron.core.transformer.moe.router import TopKRouter

torch.distributed.init_process_group("nccl")
torch.cuda.set_device(rank := torch.distributed.get_rank())
parallel_state.initialize_model_parallel(pipeline_model_parallel_size=2, create_gloo_process_groups=False)
sizes = {"num_layers": 2, "mtp_num_layers": 1, "hidden_size": 16, "num_attention_heads": 1}
experts = {"num_moe_experts": 4, "moe_layer_freq": [0, 1], "moe_aux_loss_coeff": 0.01, "add_bias_linear": False}
stages = {"pipeline_model_parallel_size": 2, "pipeline_dtype": torch.float}
config = TransformerConfig(**sizes, **experts, **stages)
if "--cured" in sys.argv:
    length = config.num_layers + config.mtp_num_layers
    moe_utils.save_to_aux_losses_tracker("load_balancing_loss", torch.zeros(1).cuda().sum(), 1, length)
if rank == 1:  # the stage of the second layer, which has experts
    router = TopKRouter(config, moe_utils.get_default_pg_collection()).cuda()
    router.set_layer_number(2)
    logits = torch.nn.functional.linear(torch.randn(8, 1, 16).cuda(), router.weight)  # as its gating, without TE
    scores, _ = router.routing(logits)
    scores.sum().backward()
losses = {}
moe_utils.track_moe_metrics(  # as training_log calls it
    1.0, 1, total_loss_dict=losses, force_initialize=True, track_names=["load_balancing_loss"],
    num_layers=config.num_layers, moe_layer_freq=config.moe_layer_freq, mtp_num_layers=config.mtp_num_layers,
)  # fmt: skip
print(rank, losses["load_balancing_loss"].item())
torch.distributed.destroy_process_group()
