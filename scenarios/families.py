"""Builds models that transformers lacks, or has differently: Mixtral, a convolutional network, Megatron-LM's GPT.

* **Mixtral** (Jiang et al. 2024, arXiv 2401.04088): each token goes to two of eight experts, which the router
  computes. transformers' own loop asks the device which experts were hit (``nonzero``), in each layer: the host waits
  there, and a wait hides races; and a dry run, which has no values, refuses ``nonzero`` by name. So a live scenario
  takes transformers' ``batched_mm``, which reads nothing, and a model of full size the *balanced* routing of
  :func:`balanced`: each expert gets the same number of tokens, which its auxiliary loss trains it for. Its experts are
  one parameter in one module (transformers 5), so DeepSpeed gathers all of them whichever are hit:
  ``set_z3_leaf_modules``, without which older models can deadlock when ranks hit different experts, is not needed.
* **ConvNeXt** (Liu et al. 2022, arXiv 2201.03545) reads the bytes of a question as a picture, and predicts which of
  A, B, C and D is right: real text, and a convolutional network's operators.
* **Megatron-LM's GPT** (Shoeybi et al. 2019, arXiv 1909.08053) has no module for the output: the model multiplies by
  the embedding's weight itself (``parallel_lm_logits`` in ``megatron/model/language_model.py``). So DeepSpeed takes it
  for a parameter of the whole model, and keeps it gathered from the beginning of the forward pass to the end of the
  backward pass: a part of ``stage3_max_live_parameters`` that prefetching then lacks.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers import (
    ConvNextConfig,
    ConvNextForImageClassification,
    GPTNeoXForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
)
from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS

BALANCED = "balanced"
MEGATRON = "output_of_embedding"  # an entry of a configuration: :func:`as_megatron` is applied to the model
CHOSEN = 2  # experts of a token
HEIGHT = 8  # of a picture, in bytes
_FIRST = ord("A")


def balanced(self: Any, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
    """Compute as transformers' experts do, but with equally many tokens for each expert. Reads no value.

    ``hidden_states``: [tokens, hidden]; ``top_k_index`` and ``top_k_weights``: [tokens, experts of a token]. The pairs,
    sorted by expert, are cut into equal parts wherever the next expert begins: correct where the routing is balanced.
    """
    chosen, experts = top_k_index.size(-1), self.num_experts
    order = torch.argsort(top_k_index.reshape(-1), stable=True)
    tokens = torch.div(order, chosen, rounding_mode="floor")
    sizes = [order.numel() // experts + (at < order.numel() % experts) for at in range(experts)]
    inputs = hidden_states.index_select(0, tokens).split(sizes)
    parts = []
    for at, part in enumerate(inputs):
        gate, up = nn.functional.linear(part, self.gate_up_proj[at]).chunk(2, dim=-1)
        parts.append(nn.functional.linear(self.act_fn(gate) * up, self.down_proj[at]))
    weighted = torch.cat(parts) * top_k_weights.reshape(-1).index_select(0, order).unsqueeze(-1)
    return torch.zeros_like(hidden_states).index_add_(0, tokens, weighted.to(hidden_states.dtype))


def offer_balanced() -> None:
    """Register :func:`balanced` with transformers, by its name."""
    ALL_EXPERTS_FUNCTIONS.register(BALANCED, balanced)


def as_megatron(model: GPTNeoXForCausalLM) -> GPTNeoXForCausalLM:
    """Return ``model``, whose output is tied to its embedding, without a module for the output: the same values."""
    del model.lm_head
    vars(model)["lm_head"] = partial(_output, model)  # an attribute in place of the module, but no module
    return model


def _output(model: GPTNeoXForCausalLM, hidden: Tensor) -> Tensor:
    return nn.functional.linear(hidden, model.gpt_neox.embed_in.weight)


def mixtral(
    *, layers: int, hidden: int, intermediate: int, heads: int, kv_heads: int, experts: int, vocab: int, attention: str
) -> MixtralForCausalLM:
    """Build a small Mixtral whose experts read no value."""
    config = MixtralConfig(
        vocab_size=vocab,
        hidden_size=hidden,
        intermediate_size=intermediate,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        num_local_experts=experts,
        num_experts_per_tok=CHOSEN,
        attention_dropout=0.0,
        use_cache=False,
        bos_token_id=None,
        eos_token_id=None,
        attn_implementation=attention,  # type: ignore[call-arg]  # go through **kwargs, which mypy does not see
        experts_implementation="batched_mm",
    )
    return MixtralForCausalLM(config)


class TextAsPicture(nn.Module):
    """ConvNeXt on bytes. Called as a language model is; its labels are the letters of the answers."""

    def __init__(self, *, layers: int, hidden: int) -> None:
        super().__init__()
        config = ConvNextConfig(
            num_channels=1,
            patch_size=2,
            num_stages=2,
            hidden_sizes=[hidden, 2 * hidden],
            depths=[layers, layers],
            drop_path_rate=0.0,
            num_labels=4,  # type: ignore[call-arg]  # goes through **kwargs
        )
        self.network = ConvNextForImageClassification(config)

    def forward(self, input_ids: Tensor, attention_mask: Tensor, labels: Tensor | None = None) -> Any:
        """Run on ``input_ids``, [batch, sequence], whose last token but one before the padding is the answer's letter.

        The letter is taken out of the picture. Reads no value.
        """
        answers = attention_mask.sum(dim=1, keepdim=True) - 2
        letters = input_ids.gather(1, answers).squeeze(1) - _FIRST
        visible = input_ids.scatter(1, answers, torch.zeros_like(answers)) * attention_mask
        width = max(4, -(-visible.size(1) // (2 * HEIGHT)) * 2)  # even, as it is halved twice
        pixels = nn.functional.pad(visible, (0, HEIGHT * width - visible.size(1))).view(-1, 1, HEIGHT, width)
        dtype = next(self.parameters()).dtype
        return self.network(pixel_values=(pixels / 256).to(dtype), labels=letters.clamp(0, 3))
