"""Builds full-size models for dry runs: published shapes by name, a transformers configuration, or a user's function.

Nothing is downloaded and nothing is computed: on a dry device the weights have addresses, not values.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    FalconConfig,
    GPTNeoXConfig,
    GPTNeoXForCausalLM,
    LlamaConfig,
    MixtralConfig,
    PretrainedConfig,
)

from streamrace.scenarios.families import BALANCED, CHOSEN, MEGATRON, as_megatron, offer_balanced
from streamrace.scenarios.models import FULL_SIZE, FullModel

ModelBatch = Mapping[str, Tensor]
MakeBatch = Callable[[int, int], ModelBatch]
MakeModel = Callable[[], nn.Module]


class ModelError(Exception):
    """A model that is not known or cannot be built. One sentence: the error, and how to correct it."""


@dataclass(frozen=True)
class TrainedModel:
    """A model to train. ``make``: builds the model; ``batch(micro_batch, sequence)``: returns its keyword arguments."""

    name: str
    make: MakeModel
    batch: MakeBatch
    hidden: int | None = None  # the width that "auto" in a DeepSpeed JSON is computed from
    layers: int | None = None  # the model's own number; None: unknown, and fixed

    @property
    def parameters(self) -> int:
        """Count the elements of a new model, a shared one once. Raises :class:`ModelError`."""
        with torch.device("meta"):
            return sum(parameter.numel() for parameter in self.make().parameters())


def subject(model: str, *, attention: str = "sdpa", layers: int | None = None) -> TrainedModel:
    """Look up ``model``: a name of :data:`FULL_SIZE`, a transformers configuration, or ``module:function``.

    A configuration is a ``config.json`` or a folder with one. The function takes nothing and returns a module that
    takes ``input_ids``, ``attention_mask`` and ``labels`` and returns a loss (as the result, first of a tuple, or as
    ``.loss``); or a pair of that module and a function ``batch(micro_batch, sequence)`` that returns the module's
    keyword arguments.

    ``layers``: replaces the model's own number of layers. A function's model keeps its own.

    Raises :class:`ModelError`.
    """
    if model in FULL_SIZE:
        return _of_config(model, config_of(FULL_SIZE[model], attention), layers)
    if ":" in model and not os.path.exists(model):
        return _of_function(model)
    path = Path(model)
    if path.is_dir():
        path = path / "config.json"
    if not path.is_file():
        raise ModelError(
            f"there is no model '{model}': choose one of {', '.join(FULL_SIZE)}, name a transformers config.json, "
            "or a function as module:function"
        )
    try:
        config = AutoConfig.from_pretrained(str(path), attn_implementation=attention, local_files_only=True)
    except Exception as error:  # transformers raises exceptions of many kinds
        raise ModelError(f"{path} is not a transformers configuration: {_line(error)}") from error
    config.use_cache = False
    if isinstance(config, MixtralConfig):
        offer_balanced()
        config._experts_implementation = BALANCED
    return _of_config(str(model), config, layers)


def config_of(model: FullModel, attention: str = "sdpa") -> PretrainedConfig:
    """Return the transformers configuration of a published shape. No dropout, no cache."""
    common: dict[str, Any] = {
        "vocab_size": model.vocab,
        "hidden_size": model.hidden,
        "num_hidden_layers": model.layers,
        "num_attention_heads": model.heads,
        "attention_dropout": 0.0,
        "use_cache": False,
        "bos_token_id": None,
        "eos_token_id": None,
        "attn_implementation": attention,
    }
    if model.family == "llama":
        return LlamaConfig(
            intermediate_size=model.intermediate,
            num_key_value_heads=model.kv_heads,
            max_position_embeddings=4096,
            rms_norm_eps=1e-5,
            **common,
        )
    if model.family == "mixtral":
        offer_balanced()
        return MixtralConfig(
            intermediate_size=model.intermediate,
            num_key_value_heads=model.kv_heads,
            num_local_experts=model.experts,
            num_experts_per_tok=CHOSEN,
            max_position_embeddings=4096,
            rms_norm_eps=1e-5,
            experts_implementation=BALANCED,  # type: ignore[call-arg]  # goes through **kwargs
            **common,
        )
    if model.family == "gpt":
        return GPTNeoXConfig(
            intermediate_size=model.intermediate,
            hidden_dropout=0.0,
            max_position_embeddings=2048,
            tie_word_embeddings=True,
            **common | {MEGATRON: True},
        )
    return FalconConfig(
        ffn_hidden_size=model.intermediate,
        num_kv_heads=model.kv_heads,
        # Falcon-7B has the older block: one key and value for all heads, one norm.
        new_decoder_architecture=model.norms_per_layer == 2,
        multi_query=True,
        hidden_dropout=0.0,
        **common,
    )


def loss_of(output: Any) -> Tensor:
    """Return the loss in a model's output. Raises :class:`ModelError`."""
    loss = getattr(output, "loss", None)
    if loss is None:
        loss = output[0] if isinstance(output, (tuple, list)) and output else output
    if not isinstance(loss, Tensor) or loss.numel() != 1:
        raise ModelError(
            f"the model returns {type(output).__name__}, and no loss in it: return the loss by itself, first of a "
            "tuple, or as .loss"
        )
    return loss


def _of_config(name: str, config: PretrainedConfig, layers: int | None) -> TrainedModel:
    own_layers = getattr(config, "num_hidden_layers", None)
    if layers is not None and own_layers is not None:
        config.num_hidden_layers = layers

    def make() -> nn.Module:
        try:
            model: nn.Module = AutoModelForCausalLM.from_config(config)  # type: ignore[no-untyped-call]
        except ValueError as error:
            raise ModelError(f"transformers builds no causal language model of {name}: {_line(error)}") from error
        if getattr(config, MEGATRON, False) and isinstance(model, GPTNeoXForCausalLM):
            return as_megatron(model)
        return model

    return TrainedModel(name, make, _tokens, getattr(config, "hidden_size", None), own_layers)


def _tokens(micro_batch: int, sequence: int) -> ModelBatch:
    """Return whole sequences without padding, like packed training data."""
    ones = torch.ones(micro_batch, sequence, dtype=torch.int64)
    return {"input_ids": ones, "attention_mask": ones.clone(), "labels": ones.clone()}


def _of_function(name: str) -> TrainedModel:
    module_name, _, function_name = name.partition(":")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())  # as `python -m` does
    try:
        function = getattr(importlib.import_module(module_name), function_name)
    except ImportError as error:
        raise ModelError(
            f"cannot import '{module_name}' of the model {name}: {_line(error)}; start from the folder it lies in"
        ) from error
    except AttributeError:
        raise ModelError(f"the module '{module_name}' has no '{function_name}', which the model {name} names") from None
    if not callable(function):
        raise ModelError(f"'{name}' is not a function that makes a model")
    batches: list[MakeBatch] = []

    def make() -> nn.Module:
        built = function()
        if isinstance(built, tuple) and len(built) == 2 and callable(built[1]):
            batches[:] = [built[1]]
            built = built[0]
        if not isinstance(built, nn.Module):
            raise ModelError(f"{name} returns {type(built).__name__}, not a torch module (or a module and its batches)")
        return built

    def batch(micro_batch: int, sequence: int) -> ModelBatch:
        return (batches[0] if batches else _tokens)(micro_batch, sequence)

    return TrainedModel(name, make, batch)


def _line(error: BaseException) -> str:
    text = str(error).strip().splitlines()
    return text[0] if text else type(error).__name__
