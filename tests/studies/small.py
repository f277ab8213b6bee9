"""A small job for tests: a Llama of four layers on two nodes of four GPUs, released after use as a large one is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from streamrace.scenarios.job import Job, job

MODEL = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 512,
    "intermediate_size": 1376,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "vocab_size": 1024,
    "tie_word_embeddings": False,
}

# DeepSpeed's own settings are for large models: with them a small one is gathered once and never released.
ZERO = {
    "stage": 3,
    "overlap_comm": True,
    "reduce_bucket_size": 2_000_000,
    "stage3_param_persistence_threshold": 1000,
    "stage3_max_live_parameters": 3_000_000,
    "stage3_max_reuse_distance": 3_000_000,
    "stage3_prefetch_bucket_size": 1_500_000,
    "zero_hpz_partition_size": "auto",
}


def model(folder: Path, **changes: Any) -> str:
    """The path of a transformers configuration."""
    path = folder / "config.json"
    path.write_text(json.dumps({**MODEL, **changes}))
    return str(path)


def configuration(folder: Path, zero: dict[str, Any] | None = None, **changes: Any) -> str:
    """The path of a DeepSpeed JSON. Batch sizes are left to the options."""
    path = folder / "ds.json"
    whole = {
        "train_micro_batch_size_per_gpu": "auto",
        "gradient_accumulation_steps": "auto",
        "gradient_clipping": 1.0,
        "bf16": {"enabled": True},
        "zero_optimization": {**ZERO, **(zero or {})},
    }
    path.write_text(json.dumps({**whole, **changes}))
    return str(path)


def small(folder: Path, *, zero: dict[str, Any] | None = None, **options: Any) -> Job:
    """Such a job. ``options`` as on the command line; ``zero`` are further settings of ZeRO."""
    folder.mkdir(parents=True, exist_ok=True)
    common = {"nodes": 2, "gpus": 4, "hpz": 4, "sequence": 256, "micro_batch": 2}
    return job(model=model(folder), config=configuration(folder, zero), **{**common, **options})
