"""An uncompiled flex_attention in blocks of queries has the values and gradients of the whole one, in less memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from streamrace.device import flexible_attention


def results(score_mod: Callable[..., Any] | None, *, masked: bool, dtype: torch.dtype = torch.float32) -> list[Any]:
    """Outputs and gradients of grouped queries, by a score function that has a tensor of its own."""
    torch.manual_seed(0)
    query = torch.randn(2, 4, 40, 8, dtype=dtype).cuda().requires_grad_()
    key, value = (torch.randn(2, 2, 24, 8, dtype=dtype).cuda().requires_grad_() for _ in range(2))
    bias = torch.randn(4, 40).cuda().requires_grad_()

    def biased(score: Any, b: Any, h: Any, m: Any, n: Any) -> Any:
        return score + bias[h, m] * 0.1 + (m - n) * 0.01

    mask = create_block_mask(lambda b, h, m, n: m % 5 >= n % 4, None, None, 40, 24) if masked else None
    out, lse = flex_attention(
        query, key, value, score_mod=biased if score_mod is None else score_mod, block_mask=mask, enable_gqa=True,
        return_lse=True,
    )  # fmt: skip
    given = [query, key, value, *([bias] if score_mod is None else [])]
    return [out, lse, *torch.autograd.grad(out.square().sum() + lse[lse.isfinite()].sum(), given)]


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("rows", [1, 7, 39])
def test_blocks_have_the_values_and_gradients_of_the_whole(
    rows: int, masked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = results(None, masked=masked)
    monkeypatch.setattr(flexible_attention, "MOST_BYTES", rows * 4 * 2 * 4 * 24)
    for one, other in zip(results(None, masked=masked), whole, strict=True):
        assert one.stride() == other.stride()
        torch.testing.assert_close(one, other)


def test_long_sequences_take_little_memory() -> None:
    query = torch.randn(1, 8, 4096, 8).cuda()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    flex_attention(query, query, query)
    assert torch.cuda.max_memory_allocated() - before < 4 * 8 * 4096 * 4096  # less than its scores
