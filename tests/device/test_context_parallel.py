"""Context parallelism of torch, and attention of DTensors: two ranks give what one gives, forward and backward."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor
from world import races, together

Attended = list[Tensor]


def inputs(dtype: torch.dtype, heads: int) -> list[Tensor]:
    """Queries, keys, values, and the gradient of the output."""
    numbers = torch.Generator().manual_seed(5)
    return [torch.randn(2, many, 128, 16, generator=numbers).to("cuda", dtype) for many in (4, heads, heads, 4)]


def attend(q: Tensor, k: Tensor, v: Tensor, gradient: Tensor, *, causal: bool, grouped: bool) -> Attended:
    q, k, v = (one.detach().requires_grad_() for one in (q, k, v))
    out = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=grouped)
    out.backward(gradient)
    return [out.detach(), *(one.grad for one in (q, k, v) if one.grad is not None)]


def of_one(parts: list[Tensor], *, causal: bool, grouped: bool) -> Attended:
    """In float64, by its definition: what each kernel comes near to."""
    return attend(*(one.double() for one in parts), causal=causal, grouped=grouped)


def error(made: Attended, right: Attended) -> float:
    assert len(made) == len(right) == 4
    return max(float((one.double() - other).abs().max()) for one, other in zip(made, right, strict=True))


def by_heads(rank: int, world: int, device: str) -> float:
    """Tensor parallelism: each rank has some heads of DTensors."""
    parts = inputs(torch.float32, 4)
    made = attend(
        *(distribute_tensor(one, init_device_mesh(device, (world,)), [Shard(1)]) for one in parts),
        causal=True, grouped=False,
    )  # fmt: skip
    whole = [one.full_tensor() for one in made if isinstance(one, DTensor)]
    return error(whole, of_one(parts, causal=True, grouped=False))


def in_parallel(rank: int, world: int, device: str) -> Any:
    experimental = importlib.import_module("torch.distributed.tensor.experimental._attention")
    mesh = init_device_mesh(device, (world,))
    found = {}
    for dtype, heads, causal, balanced, rotated in (
        (torch.float32, 4, True, True, "allgather"), (torch.float32, 4, True, False, "alltoall"),
        (torch.float32, 4, False, False, "allgather"), (torch.bfloat16, 4, True, True, "alltoall"),
        (torch.bfloat16, 2, True, True, "allgather"), (torch.bfloat16, 4, False, False, "alltoall"),
    ):  # fmt: skip
        experimental._cp_options.enable_load_balance = balanced
        experimental.set_rotate_method(rotated)
        how: dict[str, Any] = {"causal": causal, "grouped": heads != 4}
        right = of_one(inputs(dtype, heads), **how)
        parts = inputs(dtype, heads)
        with experimental.context_parallel(mesh, buffers=parts, buffer_seq_dims=[2] * 4):
            assert parts[0].shape[2] == 64
            made = attend(*parts, **how)
            made = experimental.context_parallel_unshard(mesh, made, [2] * 4)
        found[f"{dtype}, {heads} heads, {causal=}, {balanced=}, {rotated}"] = error(made, right)
    return found


def test_context_parallelism_gives_what_one_rank_gives(tmp_path: Path) -> None:
    importlib.import_module("torch.distributed.tensor.experimental._attention")
    assert max(together(2, by_heads, tmp_path / "heads")) < 1e-5
    for found in together(2, in_parallel, tmp_path):
        wrong = {name: off for name, off in found.items() if off > (1e-5 if "float32" in name else 0.06)}
        assert wrong == {}, found
    assert races(tmp_path) == []
