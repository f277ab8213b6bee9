"""Trains a Llama of a published size, as users write such a script: ``rehearsed_llama.py SIZE FILE``.

ZeRO-3 with hpZ over a node's GPUs, and gradient checkpointing. Nothing in the script knows of a simulation; for
:mod:`benchmarks.dry_program` it writes to FILE the seconds of its start-up, and of each step.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import deepspeed
import torch
from transformers import AutoModelForCausalLM, LlamaConfig

SIZES = {  # width, inner width, layers, heads, heads of keys and values
    "7b": (4096, 11008, 32, 32, 32),
    "70b": (8192, 28672, 80, 64, 8),
}
MICRO_BATCH, SEQUENCE, STEPS = 8, 2048, 2


def main(size: str, file: str) -> None:
    hidden, inner, layers, heads, shared = SIZES[size]
    config: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": MICRO_BATCH,
        "gradient_clipping": 1.0,
        "bf16": {"enabled": True},
        "zero_optimization": {
            "stage": 3,
            "overlap_comm": True,
            "contiguous_gradients": True,
            "zero_hpz_partition_size": int(os.environ["LOCAL_WORLD_SIZE"]),
        },
    }
    deepspeed.init_distributed()
    began = time.perf_counter()
    shape: dict[str, Any] = {
        "hidden_size": hidden,
        "intermediate_size": inner,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": shared,
        "max_position_embeddings": 4096,
        "use_cache": False,
        "attn_implementation": "sdpa",
    }
    models: Any = AutoModelForCausalLM
    with deepspeed.zero.Init(config_dict_or_path=config):
        model = models.from_config(LlamaConfig(**shape))
    model.gradient_checkpointing_enable({"use_reentrant": False, "preserve_rng_state": False})
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
    engine.train()
    times = [time.perf_counter() - began]
    tokens = torch.ones(MICRO_BATCH, SEQUENCE, dtype=torch.int64, device="cuda")
    for _ in range(STEPS):
        began = time.perf_counter()
        engine.backward(engine(input_ids=tokens, attention_mask=tokens, labels=tokens).loss)
        engine.step()
        times.append(time.perf_counter() - began)
    Path(file).write_text(json.dumps(times))


if __name__ == "__main__":
    main(*sys.argv[1:])
