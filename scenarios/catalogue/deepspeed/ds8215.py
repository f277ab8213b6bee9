"""ZeRO-3 with quantized weights: bfloat16 parameters are read as float16, so all that is gathered is another number.

The quantizer casts its input's pointer to __half*, whatever its type is.
"""

# /// catalogue
# title = "qwZ: bfloat16 weights are quantized as if they were float16"
# mechanism = """
# CUDAQuantizer.quantize passes a bfloat16 partition to a kernel that reads float16: the same bits are another number, \
# which is quantized, gathered and used. All accesses are ordered: it is wrong arithmetic, and no race."""
# threads = ["https://github.com/deepspeedai/DeepSpeed/issues/7775", "https://github.com/deepspeedai/DeepSpeed/pull/8215"]
# kind = "arithmetic"
# known = "0.10.0 to 0.19.5; checked: 0.10.3, 0.13.5, 0.18.3, 0.19.5, and 0.19.6 is right"
# affected = { packages = ["deepspeed==0.19.4"] }
# fixed = { packages = ["deepspeed==0.19.8"] }
# ranks = 2
# ///

import os

import deepspeed
import torch

from streamrace.detectors.values.answers import answer

SIZE = 512
CONFIG = {
    "train_micro_batch_size_per_gpu": 1,
    "bf16": {"enabled": True},
    "zero_allow_untested_optimizer": True,
    "zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": 0, "zero_quantized_weights": True},
}


class Scale(torch.nn.Module):
    def __init__(self, weight: torch.Tensor) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.weight


torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
deepspeed.init_distributed()
torch.manual_seed(0)
weight = torch.rand(SIZE) + 1  # from 1 to 2: a step of INT8 is 2 * 2 / 256
model = torch.nn.Sequential(Scale(weight.clone()))
engine, *_ = deepspeed.initialize(model=model, config=CONFIG, optimizer=torch.optim.SGD(model.parameters(), lr=1.0))
got = engine(torch.ones(SIZE, device="cuda", dtype=torch.bfloat16))
torch.cuda.synchronize()
answer("the weights of forward", got, weight, atol=2**-6 + 2**-7)  # a step, and bfloat16's rounding
