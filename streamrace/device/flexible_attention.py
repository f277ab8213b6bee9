"""Computes an uncompiled ``flex_attention`` in blocks of queries, so that its scores need little memory.

torch's definition (torch/_higher_order_ops/flex_attention.py, sdpa_dense) has them all in memory at once, several
times: 11 GB for eight heads of 8,192 tokens. A small one runs as it is.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import torch

MOST_BYTES = 1 << 26
"""Scores that are computed at once."""


def install(module: ModuleType) -> None:
    """Change ``torch._higher_order_ops.flex_attention``."""
    target: Any = module
    key = torch._C.DispatchKey.CompositeExplicitAutograd
    for operator, blocks in ((target.flex_attention, _forward), (target.flex_attention_backward, _backward)):
        operator.py_kernels[key] = functools.partial(blocks, operator.py_kernels[key], target._permute_strides)


def _forward(
    plain: Callable[..., Any], permuted: Callable[..., Any], query: Any, key: Any, value: Any, score_mod: Any,
    block_mask: tuple[Any, ...], *more: Any,
) -> tuple[Any, ...]:  # fmt: skip
    parts = [
        plain(query[:, :, rows], key, value, _later(score_mod, 3, rows), _masked(block_mask, rows), *more)
        for rows in _blocks(query, key)
    ]
    if len(parts) == 1:
        return tuple(parts[0])
    out, *others = (torch.cat(list(of), dim=2) for of in zip(*parts, strict=True))
    return (permuted(out, query.stride()), *others)


def _backward(
    plain: Callable[..., Any], permuted: Callable[..., Any], query: Any, key: Any, value: Any, out: Any, logsumexp: Any,
    grad_out: Any, grad_logsumexp: Any, fw_graph: Any, joint_graph: Any, block_mask: tuple[Any, ...], *more: Any,
) -> tuple[Any, ...]:  # fmt: skip
    parts = [
        plain(
            query[:, :, rows], key, value, out[:, :, rows], logsumexp[:, :, rows],
            None if grad_out is None else grad_out[:, :, rows],
            None if grad_logsumexp is None else grad_logsumexp[:, :, rows],
            _later(fw_graph, 3, rows), _later(joint_graph, 3, rows), _masked(block_mask, rows), *more,
        )
        for rows in _blocks(query, key)
    ]  # fmt: skip
    if len(parts) == 1:
        return tuple(parts[0])
    of_query, of_key, of_value, captured = zip(*parts, strict=True)
    return (
        permuted(torch.cat(of_query, dim=2), query.stride()),
        sum(of_key[1:], of_key[0]),
        sum(of_value[1:], of_value[0]),
        tuple(None if one[0] is None else sum(one[1:], one[0]) for one in zip(*captured, strict=True)),
    )


def _blocks(query: Any, key: Any) -> Iterator[slice]:
    batch, heads, length, _ = query.shape
    rows = max(MOST_BYTES // (4 * batch * heads * key.size(2)), 1)
    for block in range(math.ceil(length / rows)):
        yield slice(block * rows, min((block + 1) * rows, length))


def _later(function: Any, at: int, rows: slice) -> Any:
    """Wrap a function of a query's index, its argument number ``at``, so that the first one is that of the block."""
    if function is None or not rows.start:
        return function
    return lambda *given: function(*given[:at], given[at] + rows.start, *given[at + 1 :])


def _masked(block_mask: tuple[Any, ...], rows: slice) -> tuple[Any, ...]:
    return (*block_mask[:-1], _later(block_mask[-1], 2, rows))
