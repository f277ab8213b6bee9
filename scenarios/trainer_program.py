"""Trains as a user's program: transformers' Trainer with DeepSpeed's hpZ, on a Llama of eight layers.

As in the programs of DeepSpeed issue 5059, but for the size. :mod:`streamrace.studies.trainer` runs it under several
releases::

    streamrace device --ranks 4 -m streamrace.scenarios.trainer_program STEPS

It prints a line for each step: its number, the loss and the norm of the gradients (null: not finite), as JSON.
"""

from __future__ import annotations

import json
import math
import sys
import tempfile
from typing import Any

SAID = "LOSS "
"""Prefix of these lines."""
ZERO = {
    "stage": 3,
    "overlap_comm": True,
    "contiguous_gradients": True,
    "zero_hpz_partition_size": 2,
    "reduce_bucket_size": 500_000,
    # In proportion to the model, as DeepSpeed's are to 7B: with the defaults a small model is never released.
    "stage3_prefetch_bucket_size": 40_000,
    "stage3_param_persistence_threshold": 200,
    "stage3_max_live_parameters": 900_000,
    "stage3_max_reuse_distance": 900_000,
}


def main(steps: int) -> None:
    """Train as one of the ranks."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments

    from streamrace.frameworks.deepspeed import stock  # noqa: F401 - gives an old release what it needs to start

    class Counting(torch.utils.data.Dataset[Any]):
        """Sequences that count up in threes, each from its own number."""

        def __len__(self) -> int:
            return 256

        def __getitem__(self, place: int) -> dict[str, torch.Tensor]:
            words = (place % 16 + torch.arange(64) * 3) % 256
            return {"input_ids": words, "labels": words.clone(), "attention_mask": torch.ones_like(words)}

    class Say(TrainerCallback):
        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
            if state.is_world_process_zero and "loss" in logs:
                norm = float(logs["grad_norm"])
                row = [state.global_step, float(logs["loss"]), norm if math.isfinite(norm) else None]
                print(f"\n{SAID}{json.dumps(row)}", flush=True)

    torch.manual_seed(0)
    config = {
        "train_micro_batch_size_per_gpu": "auto",
        "gradient_accumulation_steps": "auto",
        "gradient_clipping": "auto",
        "bf16": {"enabled": "auto"},
        "zero_optimization": ZERO,
    }
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            deepspeed=config,
            bf16=True,
            gradient_checkpointing=True,
            gradient_checkpointing_kwargs={"use_reentrant": True},
            per_device_train_batch_size=4,
            max_steps=steps,
            logging_steps=1,
            save_strategy="no",
            report_to=[],
            learning_rate=2e-4,
            lr_scheduler_type="constant",
            disable_tqdm=True,
        )
        model = LlamaForCausalLM(
            LlamaConfig(
                hidden_size=128,
                intermediate_size=344,
                num_hidden_layers=8,
                num_attention_heads=4,
                num_key_value_heads=4,
                vocab_size=256,
                use_cache=False,
                tie_word_embeddings=False,
            )
        )
        Trainer(model=model, args=arguments, train_dataset=Counting(), callbacks=[Say()]).train()


if __name__ == "__main__":
    main(int(sys.argv[1]))
