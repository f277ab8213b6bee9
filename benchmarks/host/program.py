"""Trains a small Llama, as users write it: ``program.py FRAMEWORK LAYERS``, for :mod:`benchmarks.host`.

Tensors are small, so that a step costs the host what its Python and its launches cost. A ``frac`` on the GPU, which
occurs nowhere else, begins and ends the micro-batches that are measured.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from transformers import LlamaConfig, LlamaForCausalLM

STEPS, ACCUMULATED, WARM = 12, 4, 2
SAYS = "microseconds:"
FRAMEWORKS = ("plain", "fsdp2", "zero1", "zero2", "zero3", "hpz", "zero3-checkpointing")


def main(framework: str, layers: int) -> None:
    """Print the processor time of a micro-batch, in microseconds, in the fastest step."""
    torch.cuda.set_device(0)
    words = torch.zeros(1, 32, dtype=torch.long, device="cuda")
    micro_batch = _micro_batch(framework, layers, words)
    for _ in range(WARM * ACCUMULATED):
        micro_batch()
    torch.zeros(1, device="cuda").frac()
    fastest = float("inf")
    for _ in range(STEPS):
        began = time.process_time()
        for _ in range(ACCUMULATED):
            micro_batch()
        fastest = min(fastest, time.process_time() - began)
    torch.zeros(1, device="cuda").frac()
    print(SAYS, fastest / ACCUMULATED * 1e6)
    if dist.is_initialized():
        dist.destroy_process_group()


def _micro_batch(framework: str, layers: int, words: torch.Tensor) -> Callable[[], None]:
    sizes: dict[str, Any] = {
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": layers,
        "vocab_size": 128,
    }
    heads: dict[str, Any] = {"num_attention_heads": 2, "num_key_value_heads": 2}
    config: Any = LlamaConfig(**sizes, **heads, use_cache=False)
    if framework.startswith(("zero", "hpz")):
        return _with_deepspeed(framework, config, words)
    model: Any = LlamaForCausalLM(config)
    model.to("cuda", torch.bfloat16)
    if framework == "fsdp2":
        dist.init_process_group("nccl")
        for layer in model.model.layers:
            fully_shard(layer)
        fully_shard(model)
    return lambda: model(input_ids=words, labels=words).loss.backward()


def _with_deepspeed(framework: str, config: Any, words: torch.Tensor) -> Callable[[], None]:
    import deepspeed

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
    main(sys.argv[1], int(sys.argv[2]))
