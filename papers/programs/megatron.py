"""Trains a decoder by Megatron-core: tensor, sequence, pipeline and data parallelism, all of it Megatron's own code.

Megatron-core is used as it is without TransformerEngine and Apex, which need CUDA, with torch's kernels in their place:
fused Adam, norms of lists of tensors, products that add to gradients, attention, and a softmax of one kernel for
Megatron's.

The release is not of the environment: Megatron-FSDP takes its parts from any Megatron-core that it can import.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from papers.programs.decoder import DecoderSizes
from streamrace.device.device import Device
from streamrace.device.packages import places_of

RELEASE = "megatron-core==0.16.1"

Recomputed = Literal["none", "full", "core attention"]
Overlap = Literal["none", "gradients", "all"]
Activation = Literal["gelu", "swiglu", "squared relu"]


def make_importable(tell: Callable[[str], None] = lambda _: None) -> None:
    """Let this process and its forks import Megatron-core, which is first installed into the cache of releases.

    ``tell`` gets a sentence when it is. Raises :class:`streamrace.device.packages.names.PackageError`.
    """
    sys.path[:0] = [str(place) for place in places_of([RELEASE], tell=tell) if str(place) not in sys.path]


class MegatronTraining(NamedTuple):
    """A training by Megatron-core.

    ``sizes``: with ``gpt``, biases and learned positions, else rotary positions. ``tied``: the last layer has the
    embedding's weights. ``rms``: norms of Llama's kind. ``tensor``, ``pipeline``: sizes of groups; ``chunks``: of the
    model on each stage, which are interleaved if there are several. ``sequence_parallel``: also norms are split in each
    tensor-parallel group. ``sharded``: the ranks that share one optimizer's state, 1: none. ``overlap``: what runs
    beside computation, the reduction of gradients, or also gathering weights; messages of interleaved pieces do with
    ``overlap_messages``. ``fp32_gradients``: gradients are added up and reduced in fp32; ``fused_gradients``: by the
    products that compute them. ``flash``: attention is one fused kernel; else ``dropout`` is that of its probabilities.
    ``by_cost``: stages have layers as in :func:`stages_by_cost`, else as in :func:`stages`.
    """

    sizes: DecoderSizes
    micro_batch: int
    accumulation: int
    steps: int
    tensor: int
    pipeline: int
    chunks: int = 1
    sequence_parallel: bool = True
    sharded: int = 1
    overlap: Overlap = "none"
    overlap_messages: bool = True
    fp32_gradients: bool = True
    fused_gradients: bool = False
    flash: bool = True
    dropout: float = 0.0
    activation: Activation = "gelu"
    rms: bool = False
    tied: bool = True
    recomputed: Recomputed = "none"
    by_cost: bool = False

    def run(self, device: Device) -> dict[str, int]:
        """Train; return the bytes that the allocator reserved and had allocated at most."""
        from megatron.core import parallel_state
        from megatron.core.pipeline_parallel import get_forward_backward_func
        from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed

        _use_torchs_kernels()
        replicas = torch.distributed.get_world_size() // (self.tensor * self.pipeline)
        parallel_state.initialize_model_parallel(
            self.tensor,
            self.pipeline,
            self.chunks if self.chunks > 1 else None,
            num_distributed_optimizer_instances=replicas // self.sharded if self.sharded > 1 else 1,
        )
        model_parallel_cuda_manual_seed(0)
        models, optimizer = self._models()
        length = self.sizes.sequence
        tokens = torch.zeros(self.micro_batch, length, dtype=torch.long, device="cuda")
        positions = torch.arange(length, device="cuda").expand(self.micro_batch, -1)

        def forward(_: object, model: Any) -> tuple[Tensor, Any]:
            return model(tokens, positions, None, labels=tokens), lambda losses: (losses.float().mean(), {})

        train = get_forward_backward_func()
        for step in range(1, self.steps + 1):
            device.phase(step, 1, "forward")
            for model in models:
                model.zero_grad_buffer()
            optimizer.zero_grad()
            train(
                forward_step_func=forward,
                data_iterator=None if len(models) == 1 else [None] * len(models),
                model=models,
                num_microbatches=self.accumulation,
                seq_length=length,
                micro_batch_size=self.micro_batch,
                decoder_seq_length=length,
                forward_only=False,
            )
            device.phase(step, self.accumulation, "step")
            optimizer.step()
        stats = torch.cuda.memory_stats()
        return {name: stats[f"{name}_bytes.all.peak"] for name in ("reserved", "allocated")}

    def _models(self) -> tuple[list[Any], Any]:
        from megatron.core import parallel_state
        from megatron.core.distributed import (
            DistributedDataParallel,
            DistributedDataParallelConfig,
            finalize_model_grads,
        )
        from megatron.core.models.gpt.gpt_model import GPTModel
        from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
        from megatron.core.transformer.module import Float16Module

        config = self._config()
        sharded = self.sharded > 1
        data_parallel = DistributedDataParallelConfig(
            grad_reduce_in_fp32=self.fp32_gradients,
            overlap_grad_reduce=self.overlap != "none",
            overlap_param_gather=self.overlap == "all" and sharded,
            align_param_gather=self.overlap == "all" and sharded and self.chunks > 1,
            use_distributed_optimizer=sharded,
            num_distributed_optimizer_instances=parallel_state.get_data_parallel_world_size() // self.sharded
            if sharded
            else 1,
        )
        models = []
        for chunk in range(self.chunks):
            at = chunk if self.chunks > 1 else None
            with torch.device("cuda"):
                gpt = GPTModel(
                    config,
                    self._blocks(config, at),
                    vocab_size=self.sizes.vocab,
                    max_sequence_length=self.sizes.sequence,
                    pre_process=parallel_state.is_pipeline_first_stage(ignore_virtual=False, vp_stage=at),
                    post_process=parallel_state.is_pipeline_last_stage(ignore_virtual=False, vp_stage=at),
                    share_embeddings_and_output_weights=self.tied,
                    position_embedding_type="learned_absolute" if self.sizes.gpt else "rope",
                    vp_stage=at,
                )
            half = Float16Module(config, gpt.cuda())
            models.append(DistributedDataParallel(config, data_parallel, half, disable_bucketing=chunk > 0))
        self._synchronise(config, models, data_parallel)
        vars(config).update(finalize_model_grads_func=finalize_model_grads)
        optimizer = get_megatron_optimizer(
            OptimizerConfig(
                lr=1e-4,
                bf16=True,
                params_dtype=torch.bfloat16,
                use_distributed_optimizer=sharded,
                overlap_param_gather=data_parallel.overlap_param_gather,
            ),
            models,
        )
        vars(config).update(grad_scale_func=optimizer.scale_loss)
        return models, optimizer

    def _synchronise(self, config: Any, models: list[Any], data_parallel: Any) -> None:
        """Tell the schedule when to reduce gradients and gather weights, as Megatron's ``training.py`` does."""

        def each(name: str) -> Any:
            found = [getattr(model, name) for model in models]
            return found if len(found) > 1 else found[0]

        vars(config).update(no_sync_func=each("no_sync"))
        if data_parallel.overlap_grad_reduce:
            vars(config).update(grad_sync_func=each("start_grad_sync"))
        if data_parallel.align_param_gather:
            vars(config).update(param_sync_func=each("start_param_sync"))

    def _blocks(self, config: Any, chunk: int | None) -> Any:
        from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
        from megatron.core.transformer.spec_utils import ModuleSpec
        from megatron.core.transformer.transformer_block import TransformerBlockSubmodules, get_num_layers_to_build

        spec = get_gpt_layer_local_spec()
        attention = spec.submodules.self_attention
        core = ModuleSpec(_Attention, {"fused": self.flash, "dropout": self.dropout})
        layer = replace(
            spec.submodules,
            input_layernorm=_Norm,
            self_attention=replace(attention, submodules=replace(attention.submodules, core_attention=core)),
            pre_mlp_layernorm=_Norm,
        )
        count = get_num_layers_to_build(config, vp_stage=chunk)
        return TransformerBlockSubmodules([replace(spec, submodules=layer)] * count, _Norm)

    def _config(self) -> Any:
        from megatron.core.transformer.transformer_config import TransformerConfig

        sizes, gpt = self.sizes, self.sizes.gpt
        recomputed: dict[str, Any] = {}
        if self.recomputed == "full":
            recomputed = {
                "recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1,
            }  # fmt: skip
        elif self.recomputed == "core attention":
            recomputed = {"recompute_granularity": "selective"}
        return TransformerConfig(
            num_layers=sizes.layers,
            hidden_size=sizes.hidden,
            num_attention_heads=sizes.heads,
            num_query_groups=sizes.kv_heads,
            ffn_hidden_size=sizes.ffn,
            kv_channels=sizes.hidden // sizes.heads,
            normalization="RMSNorm" if self.rms else "LayerNorm",
            add_bias_linear=gpt,
            gated_linear_unit=self.activation == "swiglu",
            activation_func={"gelu": functional.gelu, "swiglu": functional.silu, "squared relu": _squared}[
                self.activation
            ],
            hidden_dropout=0.0,
            attention_dropout=0.0,
            attention_softmax_in_fp32=False,
            perform_initialization=False,
            bf16=True,
            params_dtype=torch.bfloat16,
            pipeline_dtype=torch.bfloat16,
            tensor_model_parallel_size=self.tensor,
            pipeline_model_parallel_size=self.pipeline,
            virtual_pipeline_model_parallel_size=self.chunks if self.chunks > 1 else None,
            sequence_parallel=self.sequence_parallel and self.tensor > 1,
            overlap_p2p_comm=self.chunks > 1 and self.overlap_messages,
            batch_p2p_comm=self.chunks == 1 or not self.overlap_messages,
            gradient_accumulation_fusion=self.fused_gradients,
            deallocate_pipeline_outputs=True,
            pipeline_model_parallel_layout=stages_by_cost(sizes, self.pipeline)
            if self.by_cost
            else stages(sizes.layers, self.pipeline, self.chunks),
            **recomputed,
        )


def stages(layers: int, pipeline: int, chunks: int) -> list[list[str]] | None:
    """Return what each stage has if the layers do not fill the stages evenly: embedding and loss count as a layer each.

    That is DeepSpeed's ``type:transformer|embedding`` (``runtime/pipe/module.py``); the first stages have one more.
    """
    if layers % (pipeline * chunks) == 0:
        return None
    pieces = ["embedding", *["decoder"] * layers, "loss"]
    each, more = divmod(len(pieces), pipeline)
    ends = [stage * each + min(stage, more) for stage in range(pipeline + 1)]
    return [pieces[begin:end] for begin, end in itertools.pairwise(ends)]


def stages_by_cost(sizes: DecoderSizes, pipeline: int) -> list[list[str]]:
    """Return what each stage has in nanotron: all up to the piece with which it exceeds its part of the costs.

    The cost is the number of weights in products: ``build_model`` (``src/nanotron/models/base.py``) and
    ``get_block_compute_costs`` (``models/llama.py``), which counts keys and values as if they had all heads.
    """
    layer = 4 * sizes.hidden**2 + 3 * sizes.ffn * sizes.hidden
    pieces = [("embedding", 0), *[("decoder", layer)] * sizes.layers, ("loss", sizes.vocab * sizes.hidden)]
    whole, done = sum(cost for _, cost in pieces), 0
    found: list[list[str]] = [[]]
    for piece, cost in pieces:
        found[-1].append(piece)
        done += cost
        if done * pipeline > whole * len(found):
            found.append([])
    return found


def _squared(x: Tensor) -> Tensor:
    return torch.pow(functional.relu(x), 2)


class _Attention(torch.nn.Module):
    """Attention of a rank's heads: one fused kernel, or two products with a softmax between them.

    Queries, keys and values have shape (sequence, batch, heads, size of a head); the result has all heads in one.
    """

    def __init__(self, config: Any, *_: Any, fused: bool, dropout: float, **__: Any) -> None:
        super().__init__()
        self._fused, self._dropout = fused, dropout

    def forward(self, q: Tensor, k: Tensor, v: Tensor, *_: Any, **__: Any) -> Tensor:
        length, batch, heads, size = q.shape
        if k.shape[2] != heads:
            k, v = (one.repeat_interleave(heads // one.shape[2], dim=2) for one in (k, v))
        if self._fused:
            q, k, v = (one.permute(1, 2, 0, 3) for one in (q, k, v))
            attended = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            return attended.permute(2, 0, 1, 3).reshape(length, batch, heads * size)
        q, k, v = (one.reshape(length, batch * heads, size).transpose(0, 1) for one in (q, k, v))
        scores = torch.baddbmm(q.new_empty(1, 1, 1).expand(len(q), length, length), q, k.transpose(1, 2), beta=0.0)
        attended = torch.bmm(functional.dropout(torch.softmax(scores, dim=-1), self._dropout), v)
        return attended.transpose(0, 1).reshape(length, batch, heads * size)


class _Norm:
    """A norm that is split like its sequence, of which Megatron has none without TransformerEngine."""

    def __new__(cls, *, config: Any, hidden_size: int, eps: float = 1e-5, **_: Any) -> Any:
        kind = torch.nn.RMSNorm if config.normalization == "RMSNorm" else torch.nn.LayerNorm
        made = kind(hidden_size, eps=eps, dtype=config.params_dtype)
        parameter: Any
        for parameter in made.parameters():
            parameter.sequence_parallel = config.sequence_parallel
        return made


def _use_torchs_kernels() -> None:
    """Give Megatron torch's kernels instead of Apex's, without which it has slow ones of its own, or none."""
    from megatron.core import optimizer
    from megatron.core.optimizer import clip_grads
    from megatron.core.tensor_parallel import layers

    fused = SimpleNamespace(wgrad_gemm_accum_fp32=_add_product, wgrad_gemm_accum_fp16=_add_product)
    vars(layers).update(fused_weight_gradient_mlp_cuda=fused, _grad_accum_fusion_available=True)
    vars(clip_grads).update(l2_norm_impl=_norm, multi_tensor_scale_impl=_scale)
    vars(optimizer).update(Adam=partial(torch.optim.AdamW, fused=True))


def _add_product(x: Tensor, gradient: Tensor, total: Tensor) -> None:
    gradient, x = gradient.flatten(0, -2), x.flatten(0, -2)
    torch.addmm(total, gradient.t(), x, out_dtype=total.dtype, out=total)


def _norm(_: int, __: Tensor, lists: list[list[Tensor]], ___: bool) -> tuple[Tensor, None]:
    return torch.linalg.vector_norm(torch.stack(torch._foreach_norm(lists[0]))).reshape(1), None


def _scale(_: int, __: Tensor, lists: list[list[Tensor]], factor: float) -> None:
    sources, targets = lists
    if all(source is target for source, target in zip(sources, targets, strict=True)):
        torch._foreach_mul_(targets, factor)
    else:
        torch._foreach_copy_(targets, torch._foreach_mul(sources, factor))
