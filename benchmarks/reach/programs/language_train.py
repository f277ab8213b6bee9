"""A language model of another package, trained on random tokens: ``x-transformers``, ``litgpt``, ``fla``, ``liger``."""

from __future__ import annotations

import sys

import torch
from shared import DEVICE, train

kind = sys.argv[1]
tokens = torch.randint(0, 50, (2, 17)).to(DEVICE)
inputs, targets = tokens[:, :-1], tokens[:, 1:]


def cross_entropy(logits: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


if kind == "x-transformers":
    from x_transformers import AutoregressiveWrapper, Decoder, TransformerWrapper

    decoder = Decoder(dim=32, depth=2, heads=2, rotary_pos_emb=True)
    model = AutoregressiveWrapper(TransformerWrapper(num_tokens=50, max_seq_len=16, attn_layers=decoder)).to(DEVICE)
    train(model, lambda: model(tokens))
elif kind == "litgpt":
    from litgpt.config import Config
    from litgpt.model import GPT

    config = Config(block_size=16, vocab_size=50, padded_vocab_size=64, n_layer=2, n_head=2, n_embd=32)
    model = GPT(config).to(DEVICE)
    train(model, lambda: cross_entropy(model(inputs)))
elif kind == "fla":
    from fla.models import GLAConfig, GLAForCausalLM

    config = GLAConfig(hidden_size=32, num_hidden_layers=1, num_heads=2, vocab_size=50, fuse_cross_entropy=False)
    model = GLAForCausalLM(config).to(DEVICE)
    train(model, lambda: cross_entropy(model(inputs).logits))
else:
    from liger_kernel.transformers import apply_liger_kernel_to_llama
    from transformers import LlamaConfig, LlamaForCausalLM

    if DEVICE != "cpu":
        apply_liger_kernel_to_llama()
    config = LlamaConfig(
        vocab_size=50, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=2,
    )  # fmt: skip
    model = LlamaForCausalLM(config).to(DEVICE)
    train(model, lambda: model(input_ids=tokens, labels=tokens).loss)
