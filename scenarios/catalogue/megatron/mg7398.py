"""Fine-grained activation offloading: backward brings an activation back before it has gone."""
# /// catalogue
# title = "Megatron: an activation is reloaded from memory that is still being filled"
# mechanism = "tensor_pop copies an activation back on the compute stream, where no prefetch has done so. It does not wait for the event behind the copy to the host."
# threads = ["https://github.com/NVIDIA/Megatron-LM/issues/7398", "https://github.com/NVIDIA/Megatron-LM/pull/7399"]
# kind = "open"
# known = "core 0.16.0; later ones not tried"
# affected = { packages = ["megatron-core==0.16.0"] }
# fixed = { packages = ["megatron-core==0.16.0"], arguments = ["--cured"] }
# ranks = 2
# places = ["fine_grained_activation_offload.py:offload", "fine_grained_activation_offload.py:reload"]
# harm = "harmful"
# ///

import os
import sys

import torch
from megatron.core.pipeline_parallel import fine_grained_activation_offload as offloading
from torch import nn

if "--cured" in sys.argv:

    def ordered(self, tag, pop=offloading.ChunkOffloadHandler.tensor_pop):
        self.offload_groups[tag[0] - 1].wait_offload_event(torch.cuda.current_stream())
        return pop(self, tag)

    offloading.ChunkOffloadHandler.tensor_pop = ordered

torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
torch.distributed.init_process_group("nccl")
torch.manual_seed(7)
layers = nn.ModuleList(nn.Sequential(nn.Linear(64, 64), nn.Tanh()) for _ in range(2)).cuda()
optimizer = torch.optim.SGD(layers.parameters(), lr=1.0)
batches = [torch.randn(16, 64).cuda() for _ in range(2)]
interface = offloading.FineGrainedActivationOffloadingInterface
manager = offloading.PipelineOffloadManager.get_instance()
manager.inside_context = True  # its __enter__ without Transformer Engine
saved = torch.autograd.graph.saved_tensors_hooks(manager.on_save_for_backward, manager.on_get_saved_tensor)
for x in batches:
    interface.init_chunk_handler(1, None, 0)
    x.requires_grad_()
    for layer in layers:
        x = offloading.fine_grained_offloading_group_start(x, name="layer")
        with saved:
            x = layer(x)
        x = interface.group_commit(x, name="layer")
    x.square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    interface.reset()
torch.cuda.synchronize()
print([p.detach().double().sum().item() for p in layers.parameters()])
