"""Builds a decoder without values, in one of two forms: Llama's blocks, or those of GPT and MPT."""

from __future__ import annotations

from typing import NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn import functional


class DecoderSizes(NamedTuple):
    """The sizes of a decoder. ``gpt``: layer norms, one product for queries, keys and values, GELU, tied embeddings."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    ffn: int
    vocab: int
    sequence: int
    gpt: bool


class DecoderBlock(nn.Module):
    """Attention and a feed-forward network, each with a norm before it and a residual around it."""

    def __init__(self, sizes: DecoderSizes) -> None:
        super().__init__()
        self.head, self.gpt = sizes.hidden // sizes.heads, sizes.gpt
        self.heads, self.kv_heads = sizes.heads, sizes.kv_heads
        self.norm1, self.norm2 = _norm(sizes), _norm(sizes)
        width = (sizes.heads + 2 * sizes.kv_heads) * self.head
        if sizes.gpt:
            self.qkv = nn.Linear(sizes.hidden, width, bias=False)
        else:
            self.q = nn.Linear(sizes.hidden, sizes.heads * self.head, bias=False)
            self.k = nn.Linear(sizes.hidden, sizes.kv_heads * self.head, bias=False)
            self.v = nn.Linear(sizes.hidden, sizes.kv_heads * self.head, bias=False)
            self.gate = nn.Linear(sizes.hidden, sizes.ffn, bias=False)
        self.out = nn.Linear(sizes.heads * self.head, sizes.hidden, bias=False)
        self.up = nn.Linear(sizes.hidden, sizes.ffn, bias=False)
        self.down = nn.Linear(sizes.ffn, sizes.hidden, bias=False)

    def forward(self, x: Tensor, angles: Tensor) -> Tensor:
        """Return the block's output. ``angles``: rotary positions, for Llama's form."""
        x = x + self.out(self._attention(self.norm1(x), angles))
        y = self.norm2(x)
        if self.gpt:
            return cast(Tensor, x + self.down(functional.gelu(self.up(y))))
        return cast(Tensor, x + self.down(functional.silu(self.gate(y)) * self.up(y)))

    def _attention(self, x: Tensor, angles: Tensor) -> Tensor:
        batch, length, _ = x.shape
        if self.gpt:
            q, k, v = self.qkv(x).split([n * self.head for n in (self.heads, self.kv_heads, self.kv_heads)], dim=2)
        else:
            q, k, v = self.q(x), self.k(x), self.v(x)
        q, k, v = (
            one.view(batch, length, count, self.head)
            for one, count in ((q, self.heads), (k, self.kv_heads), (v, self.kv_heads))
        )
        if not self.gpt:
            q, k = _rotated(q, angles), _rotated(k, angles)
        if self.kv_heads != self.heads:
            k, v = (one.repeat_interleave(self.heads // self.kv_heads, dim=2) for one in (k, v))
        q, k, v = (one.transpose(1, 2) for one in (q, k, v))
        attended = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return attended.transpose(1, 2).reshape(batch, length, -1)


class Decoder(nn.Module):
    """A decoder that returns the loss of predicting the given labels."""

    def __init__(self, sizes: DecoderSizes) -> None:
        super().__init__()
        self.sizes = sizes
        self.embedding = nn.Embedding(sizes.vocab, sizes.hidden)
        self.positions = nn.Embedding(sizes.sequence, sizes.hidden) if sizes.gpt else None
        self.blocks = nn.ModuleList(DecoderBlock(sizes) for _ in range(sizes.layers))
        self.norm = _norm(sizes)
        self.output = nn.Linear(sizes.hidden, sizes.vocab, bias=False)
        if sizes.gpt:
            self.output.weight = self.embedding.weight
        shape = (1, sizes.sequence, 1, sizes.hidden // sizes.heads // 2)
        self.register_buffer("angles", torch.empty(shape, dtype=torch.complex64), persistent=False)

    def forward(self, tokens: Tensor, labels: Tensor) -> Tensor:
        x = self.embedding(tokens)
        if self.positions is not None:
            x = x + self.positions(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = block(x, self.angles)
        logits = self.output(self.norm(x)).float()
        return functional.cross_entropy(logits.view(-1, self.sizes.vocab), labels.view(-1))


def _norm(sizes: DecoderSizes) -> nn.Module:
    return nn.LayerNorm(sizes.hidden, bias=False) if sizes.gpt else nn.RMSNorm(sizes.hidden, eps=1e-5)


def _rotated(x: Tensor, angles: Tensor) -> Tensor:
    """Turn pairs of a head's elements, as complex numbers, which is Llama's own code."""
    pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
    return torch.view_as_real(pairs * angles).flatten(3).type_as(x)
