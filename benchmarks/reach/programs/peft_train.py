"""An adapter of PEFT on a tiny Llama: ``lora``, ``dora``, ``adalora``, ``ia3``, ``prefix``, ``prompt``, ``vera``."""

from __future__ import annotations

import sys

import peft
import torch
from shared import DEVICE, train
from transformers import LlamaConfig, LlamaForCausalLM

kind = sys.argv[1]
layers = {"target_modules": ["q_proj", "v_proj"]}
adapter = {
    "lora": lambda: peft.LoraConfig(task_type="CAUSAL_LM", r=4, **layers),
    "dora": lambda: peft.LoraConfig(task_type="CAUSAL_LM", r=4, use_dora=True, **layers),
    "adalora": lambda: peft.AdaLoraConfig(task_type="CAUSAL_LM", total_step=10, target_r=2, init_r=4, **layers),
    "ia3": lambda: peft.IA3Config(
        task_type="CAUSAL_LM", target_modules=["k_proj", "down_proj"], feedforward_modules=["down_proj"]
    ),
    "vera": lambda: peft.VeraConfig(task_type="CAUSAL_LM", r=4, target_modules=["q_proj"]),
    "prefix": lambda: peft.PrefixTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=4),
    "prompt": lambda: peft.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=4),
}[kind]()
config = LlamaConfig(
    vocab_size=99, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=4,
)  # fmt: skip
model = peft.get_peft_model(LlamaForCausalLM(config), adapter).to(DEVICE)
tokens = torch.randint(0, 99, (2, 16)).to(DEVICE)
train(
    model,
    lambda: model(input_ids=tokens, labels=tokens).loss,
    parameters=[p for p in model.parameters() if p.requires_grad],
)
