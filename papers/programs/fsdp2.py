"""Trains a decoder under FSDP2, as torch's own recipes do: a unit for each block, mixed precision, fused AdamW."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

from papers.programs.decoder import Decoder, DecoderSizes
from streamrace.device.device import Device

Recomputed = Literal["none", "full", "second block", "second product"]
_SAVED = (
    torch.ops.aten._scaled_dot_product_flash_attention.default,
    torch.ops._c10d_functional.reduce_scatter_tensor.default,
)


class FsdpTraining(NamedTuple):
    """A training under FSDP2.

    ``fp32_gradients``: they are reduced in fp32, not in bf16; ``reshard``: weights are freed after the forward pass;
    ``recomputed``: activations that are computed again: those of each block, of every second block, or all but
    attention and every second matrix product; ``expandable``: torch's allocator has expandable segments.
    """

    sizes: DecoderSizes
    micro_batch: int
    accumulation: int
    steps: int
    fp32_gradients: bool
    reshard: bool
    recomputed: Recomputed
    expandable: bool = False

    def report(self, reserved: Path, device: Device) -> None:
        """Train; write the bytes that the allocator reserved at most into ``reserved``."""
        if self.expandable:
            torch.cuda.memory._set_allocator_settings("expandable_segments:True")
        self.run(device)
        reserved.write_text(str(torch.cuda.memory_stats()["reserved_bytes.all.peak"]), encoding="utf-8")

    def run(self, device: Device) -> None:
        """Train. The weights are in fp32 and computed with in bf16; gradients are reduced in each micro-batch."""
        with torch.device("meta"):
            model = Decoder(self.sizes)
        _recompute(model, self.recomputed)
        reduced = torch.float32 if self.fp32_gradients else torch.bfloat16
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=reduced)
        shard = partial(fully_shard, mp_policy=policy, reshard_after_forward=self.reshard)
        for block in model.blocks:
            shard(block)
        shard(model)
        model.to_empty(device="cuda")
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
        tokens = torch.zeros(self.micro_batch, self.sizes.sequence, dtype=torch.long, device="cuda")
        for step in range(1, self.steps + 1):
            for micro_batch in range(1, self.accumulation + 1):
                device.phase(step, micro_batch, "forward")
                loss = model(tokens, tokens)
                device.phase(step, micro_batch, "backward")
                loss.backward()
                del loss
            device.phase(step, self.accumulation, "step")
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()


def _recompute(model: Decoder, recomputed: Recomputed) -> None:
    for at, block in enumerate(model.blocks):
        options: dict[str, Any] = {"preserve_rng_state": False}
        if recomputed == "second product":
            options["context_fn"] = partial(create_selective_checkpoint_contexts, _every_second_product())
        elif recomputed == "none" or (recomputed == "second block" and at % 2):
            continue
        model.blocks[at] = checkpoint_wrapper(block, **options)


def _every_second_product() -> Callable[..., CheckpointPolicy]:
    products = {False: 0, True: 0}  # by whether it is computed again

    def policy(context: Any, operator: Any, *_: Any, **__: Any) -> CheckpointPolicy:
        saved = operator in _SAVED
        if operator is torch.ops.aten.mm.default:
            products[context.is_recompute] += 1
            saved = products[context.is_recompute] % 2 == 1
        return CheckpointPolicy.MUST_SAVE if saved else CheckpointPolicy.PREFER_RECOMPUTE

    return policy
