"""SuperOffload: the optimizer's process on the host steps before the gradient has arrived there.

Gradients are sent to a process of their own as CUDA tensors. It copies each into pinned memory with non_blocking and
steps at once, without waiting for the copy. The fix copies in the sending process, and waits before it sends.
"""
# /// catalogue
# title = "SuperOffload: the host's step does not wait for its gradient"
# mechanism = "A process beside the rank copies the gradient to pinned memory with non_blocking, and runs Adam on that memory without waiting for the copy."
# threads = ["https://github.com/deepspeedai/DeepSpeed/issues/7905", "https://github.com/deepspeedai/DeepSpeed/pull/7906"]
# tried = "Run with 0.18.8: the gradients go to another process as CUDA tensors, and the simulated GPU refuses those (CUDA IPC), as the memory and the order of a device that two processes use are not simulated."
# kind = "not-shown"
# known = "0.18.0 to 0.18.8, as the thread says"
# affected = { packages = ["deepspeed==0.18.8"] }
# ranks = 2
# ///

import os

import deepspeed
import torch

if __name__ == "__main__":
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    deepspeed.init_distributed()
    torch.manual_seed(0)
    model = torch.nn.Sequential()
    for _ in range(4):
        model.extend([torch.nn.Linear(32, 32, bias=False), torch.nn.Tanh()])
    offload = {"device": "cpu", "pin_memory": True, "ratio": 0.5, "super_offload": True}
    zero = {"stage": 3, "sub_group_size": 1024, "offload_optimizer": offload, "stage3_param_persistence_threshold": 0}
    config = {"train_micro_batch_size_per_gpu": 2, "zero_optimization": zero}
    config |= {"optimizer": {"type": "AdamW", "params": {"lr": 0.05}}}
    engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)
    torch.manual_seed(engine.global_rank)
    for step in range(3):
        loss = engine(torch.randn(2, 32, device="cuda")).square().mean()
        engine.backward(loss)
        engine.step()
        print(f"rank {engine.global_rank}, step {step}: loss {loss.item()!r}")
