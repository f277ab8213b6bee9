"""Trains a small Llama, as users write it: what a layer costs the host is measured with it.

:mod:`streamrace.studies.calibration.host` runs it on a GPU, and counts its launches and calls on the simulated GPU::

    python -m streamrace.scenarios.host_program FRAMEWORK LAYERS STEPS

Tensors are small, so that a step costs the host what its Python and its launches cost, and the GPU waits for the host.
A ``frac`` on the GPU, which occurs nowhere else, begins and ends the micro-batches that are measured.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from typing import Any

FRAMEWORKS = ("plain", "fsdp2", "zero1", "zero2", "zero3", "hpz", "zero3-checkpointing")
ACCUMULATED, WARM = 4, 2
SAID = "microseconds: "
"""Prefix of the line with the processor time of a micro-batch in the fastest step."""
_SIZES: dict[str, Any] = {"hidden_size": 64, "intermediate_size": 128, "vocab_size": 128}


def main(framework: str, layers: int, steps: int) -> None:
    """Print the line."""
    import torch
    import torch.distributed as dist

    torch.cuda.set_device(0)
    words = torch.zeros(1, 32, dtype=torch.long, device="cuda")
    micro_batch = _micro_batch(framework, layers, words)
    for _ in range(WARM * ACCUMULATED):
        micro_batch()
    torch.zeros(1, device="cuda").frac()
    fastest = float("inf")
    for _ in range(steps):
        began = time.process_time()
        for _ in range(ACCUMULATED):
            micro_batch()
        fastest = min(fastest, time.process_time() - began)
    torch.zeros(1, device="cuda").frac()
    print(SAID, fastest / ACCUMULATED * 1e6, sep="", flush=True)
    if dist.is_initialized():
        dist.destroy_process_group()


def _micro_batch(framework: str, layers: int, words: Any) -> Callable[[], None]:
    """Return a function that runs one. Each framework imports what it needs: the others run without it."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    heads: dict[str, Any] = {"num_attention_heads": 2, "num_key_value_heads": 2}
    config: Any = LlamaConfig(**_SIZES, **heads, num_hidden_layers=layers, use_cache=False)
    if framework.startswith(("zero", "hpz")):
        return _with_deepspeed(framework, config, words)
    model: Any = LlamaForCausalLM(config)
    model.to("cuda", torch.bfloat16)
    if framework == "fsdp2":
        from torch.distributed.fsdp import fully_shard

        torch.distributed.init_process_group("nccl")
        for layer in model.model.layers:
            fully_shard(layer)
        fully_shard(model)
    return lambda: model(input_ids=words, labels=words).loss.backward()


def _with_deepspeed(framework: str, config: Any, words: Any) -> Callable[[], None]:
    import deepspeed
    from transformers import LlamaForCausalLM

    zero: dict[str, Any] = {"stage": int(framework[4]) if framework.startswith("zero") else 3, "overlap_comm": True}
    if framework == "hpz":
        zero["zero_hpz_partition_size"] = int(os.environ["WORLD_SIZE"])
    settings = {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": ACCUMULATED,
        "bf16": {"enabled": True},
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-4, "torch_adam": True}},
        "zero_optimization": zero,
    }
    deepspeed.init_distributed()
    if zero["stage"] == 3:
        with deepspeed.zero.Init(config_dict_or_path=settings):
            model: Any = LlamaForCausalLM(config)
    else:
        model = LlamaForCausalLM(config)
    if framework.endswith("checkpointing"):
        model.gradient_checkpointing_enable({"use_reentrant": False})
        model.train()
    engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=settings)

    def micro_batch() -> None:
        engine.backward(engine(input_ids=words, labels=words).loss)
        engine.step()

    return micro_batch


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
