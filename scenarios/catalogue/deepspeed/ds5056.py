"""qgZ: a gradient that does not divide by twice the ranks is quantized into pieces that do not fit the ranks."""

# /// catalogue
# title = "qgZ: gradients that do not divide by twice the ranks"
# mechanism = """
# Two INT4 values share a byte, and the bytes are exchanged between the ranks: where the elements do not divide by twice \
# the ranks, the exchange does not divide either. The fix falls back to an ordinary reduce-scatter."""
# threads = ["https://github.com/deepspeedai/DeepSpeed/issues/5054", "https://github.com/deepspeedai/DeepSpeed/pull/5056"]
# kind = "not-shown"
# known = "as the thread says: up to 0.13.1"
# affected = { packages = ["deepspeed==0.13.1"] }
# fixed = { packages = ["deepspeed==0.13.5"] }
# ranks = 4
# tried = """
# It fails, and has no wrong value to show: of Linear(9, 7) on 4 ranks, and Linear(8, 8) on 6, the stand-in for DeepSpeed's \
# compiled quantizer refuses the first gradient in 0.13.1 (2 of 6 pieces would be left unwritten), and 0.13.5 falls back. \
# qgZ needs several nodes: it was run with 'streamrace check --dry --nodes 2 --gpus 2', where tensors hold nothing."""
# ///

import os

import deepspeed
import torch

ZERO = {"stage": 3, "stage3_param_persistence_threshold": 0, "zero_quantized_gradients": True}
CONFIG = {"train_micro_batch_size_per_gpu": 1, "zero_allow_untested_optimizer": True, "zero_optimization": ZERO}
CONFIG |= {"fp16": {"enabled": True, "loss_scale": 1.0}}

torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
deepspeed.init_distributed()
model = torch.nn.Linear(9, 7, bias=False)
engine, *_ = deepspeed.initialize(model=model, config=CONFIG, optimizer=torch.optim.SGD(model.parameters(), lr=1.0))
engine.backward(engine(torch.ones(1, 9, device="cuda", dtype=torch.half)).sum())
engine.step()
