"""Builds the models that a scenario trains, and lists the full-size models that they stand for.

Models are built by transformers' own configuration and model classes, with random weights: nothing is ever downloaded.
The shapes are those of

* Llama 2 (Touvron et al. 2023, arXiv 2307.09288),
* LLaMA 30B and 65B (Touvron et al. 2023, arXiv 2302.13971),
* Falcon (Almazrouei et al. 2023, arXiv 2311.16867), in the architecture of Falcon-40B: grouped
  keys and values, attention and feed-forward side by side, input and output embedding shared,
* Mixtral (Jiang et al. 2024, arXiv 2401.04088), a mixture of experts, and ConvNeXt, a convolutional
  network (:mod:`streamrace.scenarios.families`).

With an ``attention_mask`` and attention ``"eager"`` the host never waits for a value in forward or backward. Without
them, Llama reads a value once per forward (transformers 5.23.0, ``masking_utils.py``): without a mask it looks for
packed sequences, with ``"sdpa"`` it checks whether the mask is all ones. Such a read is a host synchronisation, and a
synchronisation hides races.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from typing import Any, Literal, NamedTuple, cast

import torch
from torch import nn
from transformers import FalconConfig, FalconForCausalLM, LlamaConfig, LlamaForCausalLM

from streamrace.scenarios.families import CHOSEN, TextAsPicture, mixtral

Family = Literal["llama", "falcon", "mixtral", "convnext"]
Attention = Literal["eager", "sdpa"]

FAMILIES: tuple[Family, ...] = ("llama", "falcon", "mixtral", "convnext")
LANGUAGE = FAMILIES[:3]
"""Families of causal language models."""
ATTENTIONS: tuple[Attention, ...] = ("eager", "sdpa")


class ModelSize(NamedTuple):
    """The shape of a small model: counts, and widths in elements."""

    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    experts: int = 0


SIZES: dict[tuple[Family, str], ModelSize] = {
    ("llama", "tiny"): ModelSize(layers=2, hidden=32, intermediate=88, heads=4, kv_heads=4),
    ("llama", "small"): ModelSize(layers=4, hidden=64, intermediate=176, heads=4, kv_heads=4),
    ("falcon", "tiny"): ModelSize(layers=2, hidden=32, intermediate=128, heads=4, kv_heads=2),
    ("falcon", "small"): ModelSize(layers=4, hidden=64, intermediate=256, heads=4, kv_heads=2),
    # 42 = 3 heads of 14 (rotary positions need an even head), 101 is odd: with an odd vocabulary the norms, the
    # feed-forward and the embeddings need padding on 4 ranks, and every parameter does on 8.
    ("llama", "odd"): ModelSize(layers=2, hidden=42, intermediate=101, heads=3, kv_heads=1),
    ("falcon", "odd"): ModelSize(layers=2, hidden=42, intermediate=101, heads=3, kv_heads=1),
    ("mixtral", "tiny"): ModelSize(layers=2, hidden=32, intermediate=56, heads=4, kv_heads=2, experts=4),
    ("mixtral", "small"): ModelSize(layers=4, hidden=64, intermediate=112, heads=4, kv_heads=2, experts=8),
    ("mixtral", "odd"): ModelSize(layers=2, hidden=42, intermediate=101, heads=3, kv_heads=1, experts=3),
    # Layers of each of two stages; the second is twice as wide. The inner width is four times the outer one.
    ("convnext", "tiny"): ModelSize(layers=2, hidden=16, intermediate=64, heads=1, kv_heads=1),
    ("convnext", "small"): ModelSize(layers=3, hidden=32, intermediate=128, heads=1, kv_heads=1),
    ("convnext", "odd"): ModelSize(layers=2, hidden=21, intermediate=84, heads=1, kv_heads=1),
}


@dataclass(frozen=True)
class FullModel:
    """The shape of a published model: counts, and widths in elements."""

    name: str
    family: Literal["llama", "falcon", "gpt", "mixtral"]
    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    vocab: int
    norms_per_layer: int = 2
    experts: int = 0

    @property
    def matrix_parameters(self) -> int:
        """Count the elements of the matrices that a token is multiplied by: two experts, and the output embedding."""
        return self._matrices(CHOSEN if self.experts else 1)

    def _matrices(self, experts: int) -> int:
        head = self.hidden // self.heads
        attention = self.hidden * head * (self.heads + 2 * self.kv_heads) + self.hidden * self.hidden
        # Llama's feed-forward is gated: gate, up and down. Falcon has no gate.
        matrices = 3 if self.family in ("llama", "mixtral") else 2
        layer = attention + experts * matrices * self.hidden * self.intermediate + self.experts * self.hidden
        return self.layers * layer + self.vocab * self.hidden

    @property
    def parameters(self) -> int:
        """Count the trainable elements, a shared embedding once."""
        norms = self.layers * self.norms_per_layer + 1
        if self.family in ("llama", "mixtral"):  # an input embedding of its own; root mean square norms have no bias
            return self._matrices(self.experts or 1) + self.vocab * self.hidden + norms * self.hidden
        if self.family == "gpt":  # GPT-NeoX: biases everywhere, embeddings shared
            biases = self.layers * (5 * self.hidden + self.intermediate)
            return self.matrix_parameters + norms * 2 * self.hidden + biases
        return self.matrix_parameters + norms * 2 * self.hidden

    def forward_flops(self, tokens: int, sequence: int) -> int:
        """Count the floating point operations of one forward pass over ``tokens`` tokens in sequences of ``sequence``.

        Two per element of every matrix and token; and for attention ``4 * sequence * hidden`` per layer and token
        (scores, and their product with the values). The whole square of scores counts, as eager attention computes it;
        a causal kernel does half of that. Norms, rotary positions and activations are left out. Backward takes twice as
        many.

        Raises ValueError when a count is negative, or ``tokens`` is no multiple of ``sequence``.
        """
        if tokens < 0 or sequence < 1 or tokens % sequence:
            raise ValueError(f"{tokens} tokens are not a whole number of sequences of {sequence} tokens.")
        return tokens * (2 * self.matrix_parameters + self.layers * 4 * sequence * self.hidden)


FULL_SIZE: dict[str, FullModel] = {
    model.name: model
    for model in (
        FullModel("llama-2-7b", "llama", 32, 4096, 11008, 32, 32, 32000),
        FullModel("llama-2-13b", "llama", 40, 5120, 13824, 40, 40, 32000),
        FullModel("llama-30b", "llama", 60, 6656, 17920, 52, 52, 32000),
        FullModel("llama-65b", "llama", 80, 8192, 22016, 64, 64, 32000),
        FullModel("llama-2-70b", "llama", 80, 8192, 28672, 64, 8, 32000),
        FullModel("mixtral-8x7b", "mixtral", 32, 4096, 14336, 32, 8, 32000, experts=8),
        FullModel("llama-3.1-405b", "llama", 126, 16384, 53248, 128, 8, 128256),
        FullModel("falcon-7b", "falcon", 32, 4544, 18176, 71, 1, 65024, norms_per_layer=1),
        FullModel("falcon-40b", "falcon", 60, 8192, 32768, 128, 8, 65024),
        FullModel("gpt-1.2b", "gpt", 40, 1536, 4 * 1536, 16, 16, 51200),  # Megatron-LM's smallest (arXiv 1909.08053)
        # The sizes of ZeRO++'s table (arXiv 2306.10209): layers and widths are ours, chosen such that DeepSpeed can
        # quantize all parameters on 384 ranks (scenarios/quantization.py).
        FullModel("gpt-18b", "gpt", 40, 6144, 4 * 6144, 48, 48, 50304),
        FullModel("gpt-49b", "gpt", 48, 9216, 4 * 9216, 72, 72, 50304),
        FullModel("gpt-91b", "gpt", 89, 9216, 4 * 9216, 72, 72, 50304),
        FullModel("gpt-138b", "gpt", 135, 9216, 4 * 9216, 72, 72, 50304),
        FullModel(
            "gpt-175b", "gpt", 96, 12288, 4 * 12288, 96, 96, 50304
        ),  # GPT-3 (Brown et al. 2020, arXiv 2005.14165)
    )
}


def build(
    family: str,
    size: str,
    *,
    vocab_size: int,
    seed: int,
    dtype: torch.dtype = torch.float32,
    frozen: Sequence[str] = (),
    attention: str = "eager",
    gradient_checkpointing: bool = False,
) -> nn.Module:
    """Build a small model in training mode, with the same bits for the same arguments.

    Called as ``model(input_ids=..., attention_mask=..., labels=...)`` with int64 tensors of shape [batch, sequence], a
    language model (all but ``convnext``) returns an output whose ``loss`` is a float32 scalar (mean over the labels
    that are not -100) and whose ``logits`` have shape [batch, sequence, vocab_size]; those of ``convnext``, which
    predicts letters, have shape [batch, 4]. No dropout, no cache. Weights are drawn in float32 and then rounded to
    ``dtype``; buffers stay float32. The global random state is left unchanged.

    ``frozen`` are patterns of parameter names, as in a shell (``*``, ``?``, ``[ab]``); matching parameters do not
    require a gradient. A parameter with two names (Falcon's embedding) has both.

    Raises ValueError for an unknown family, size or attention, a vocabulary without words, a pattern that matches no
    parameter, patterns that leave nothing to train, or gradient checkpointing of ``convnext``.
    """
    shape = _shape(family, size)
    if attention not in ATTENTIONS:
        raise ValueError(f"Unknown attention {attention!r}: choose one of {', '.join(ATTENTIONS)}.")
    if gradient_checkpointing and family == "convnext":
        raise ValueError("transformers' ConvNeXt has no gradient checkpointing: leave it out.")
    if vocab_size < 1:
        raise ValueError(f"A vocabulary of {vocab_size} words is too small: give at least 1.")
    with torch.random.fork_rng(devices=[]):
        # Not torch.manual_seed, which would reseed every accelerator as well, and fork_rng restores only the CPU.
        torch.default_generator.manual_seed(seed)
        model = _MAKERS[cast(Family, family)](shape, vocab_size, attention)
    for parameter in model.parameters():
        # Not model.to(dtype), which would round the rotary frequencies as well.
        if parameter.dtype != dtype:
            parameter.data = parameter.data.to(dtype)
    if gradient_checkpointing:
        # There is no dropout, so no random state to keep: keeping it would read it in every layer.
        model.activation_checkpointing_enable({"use_reentrant": False, "preserve_rng_state": False})
    _freeze(model, frozen)
    return cast(nn.Module, model.train())


def _shape(family: str, size: str) -> ModelSize:
    if family not in FAMILIES:
        raise ValueError(f"Unknown model family {family!r}: choose one of {', '.join(FAMILIES)}.")
    sizes = {name: shape for (of, name), shape in SIZES.items() if of == family}
    if size not in sizes:
        raise ValueError(f"Unknown size {size!r} of {family}: choose one of {', '.join(sizes)}.")
    return sizes[size]


def _llama(shape: ModelSize, vocab_size: int, attention: str) -> LlamaForCausalLM:
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=vocab_size,
            hidden_size=shape.hidden,
            intermediate_size=shape.intermediate,
            num_hidden_layers=shape.layers,
            num_attention_heads=shape.heads,
            num_key_value_heads=shape.kv_heads,
            rms_norm_eps=1e-5,
            attention_dropout=0.0,
            use_cache=False,
            # The vocabulary is the caller's: the default ids of the special tokens may lie outside it.
            bos_token_id=None,
            eos_token_id=None,
            attn_implementation=attention,  # type: ignore[call-arg]  # goes through **kwargs, which mypy does not see
        )
    )


def _falcon(shape: ModelSize, vocab_size: int, attention: str) -> FalconForCausalLM:
    return FalconForCausalLM(
        FalconConfig(
            vocab_size=vocab_size,
            hidden_size=shape.hidden,
            ffn_hidden_size=shape.intermediate,
            num_hidden_layers=shape.layers,
            num_attention_heads=shape.heads,
            num_kv_heads=shape.kv_heads,
            new_decoder_architecture=True,
            hidden_dropout=0.0,
            attention_dropout=0.0,
            use_cache=False,
            bos_token_id=None,
            eos_token_id=None,
            attn_implementation=attention,  # type: ignore[call-arg]  # goes through **kwargs, which mypy does not see
        )
    )


def _mixtral(shape: ModelSize, vocab_size: int, attention: str) -> nn.Module:
    return mixtral(**shape._asdict(), vocab=vocab_size, attention=attention)


def _convnext(shape: ModelSize, *_: Any) -> nn.Module:
    return TextAsPicture(layers=shape.layers, hidden=shape.hidden)


_MAKERS: dict[Family, Callable[[ModelSize, int, str], Any]] = {
    "llama": _llama,
    "falcon": _falcon,
    "mixtral": _mixtral,
    "convnext": _convnext,
}


def _freeze(model: nn.Module, patterns: Sequence[str]) -> None:
    # Both names of a shared parameter, so that lm_head.weight matches Falcon's.
    parameters = list(model.named_parameters(remove_duplicate=False))
    for pattern in patterns:
        matched = [parameter for name, parameter in parameters if fnmatchcase(name, pattern)]
        if not matched:
            example = parameters[len(parameters) // 2][0]
            raise ValueError(f"No parameter matches the frozen pattern {pattern!r}; a name looks like {example!r}.")
        for parameter in matched:
            parameter.requires_grad_(False)
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise ValueError(f"The frozen patterns {', '.join(map(repr, patterns))} leave no parameter to train.")


@cache
def parameters(family: str, size: str, *, vocab_size: int) -> int:
    """Count the elements of a small model, a shared embedding once."""
    return sum(parameter.numel() for parameter in build(family, size, vocab_size=vocab_size, seed=0).parameters())
