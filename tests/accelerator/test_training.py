"""Whole training loops: forward, backward, clipping, optimizer. Bit for bit as without the device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - as everybody calls it
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from tests.accelerator.programs import assert_same


class Block(nn.Module):
    """Attention and a multilayer perceptron."""

    def __init__(self, width: int, heads: int, *, checkpointed: bool = False) -> None:
        super().__init__()
        self.norm, self.heads, self.checkpointed = nn.LayerNorm(width), heads, checkpointed
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width, bias=False)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        return checkpoint(self.body, x, use_reentrant=False) if self.checkpointed else self.body(x)  # type: ignore[no-any-return]

    def body(self, x: Tensor) -> Tensor:
        parts = self.qkv(self.norm(x)).unflatten(-1, (3, self.heads, -1)).transpose(1, 3).unbind(2)
        mixed = F.scaled_dot_product_attention(*parts, is_causal=True).transpose(1, 2).flatten(2)
        x = x + F.dropout(self.out(mixed), 0.1, self.training)
        return x + self.down(F.gelu(self.up(x)))


class Language(nn.Module):
    def __init__(self, dtype: torch.dtype = torch.float32, *, checkpointed: bool = False) -> None:
        super().__init__()
        self.embed = nn.Embedding(32, 16)
        self.blocks = nn.Sequential(*[Block(16, 2, checkpointed=checkpointed) for _ in range(2)])
        self.head = nn.Linear(16, 32)
        self.to(dtype)

    def forward(self, tokens: Tensor) -> Tensor:
        logits = self.head(self.blocks(self.embed(tokens)))
        return F.cross_entropy(logits[:, :-1].flatten(0, 1).float(), tokens[:, 1:].flatten(), ignore_index=3)


def train(
    make: Callable[[], nn.Module], optimizer: Callable[..., torch.optim.Optimizer], batch: Callable[[], Tensor]
) -> list[Any]:
    model = make()
    stepper = optimizer(model.parameters())
    told: list[Any] = []
    for _ in range(3):
        loss = model(batch())
        loss = loss if loss.dim() == 0 else loss.pow(2).mean()
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        stepper.step()
        stepper.zero_grad(set_to_none=len(told) % 4 == 0)
        told += [loss.item(), norm]
    return [*told, dict(model.state_dict())]


def tokens() -> Tensor:
    return torch.randint(0, 32, (2, 8))


OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "AdamW foreach": lambda p: torch.optim.AdamW(p, foreach=True),
    "AdamW fused": lambda p: torch.optim.AdamW(p, fused=True),
    "AdamW one by one": lambda p: torch.optim.AdamW(p, foreach=False, amsgrad=True),
    "SGD foreach": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, foreach=True),
    "SGD fused": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, fused=True),
    "Adagrad": lambda p: torch.optim.Adagrad(p),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_language_model_with(name: str) -> None:
    assert_same(lambda: train(Language, OPTIMIZERS[name], tokens))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_a_language_model_in(dtype: torch.dtype) -> None:
    assert_same(lambda: train(lambda: Language(dtype), OPTIMIZERS["AdamW foreach"], tokens))


def test_a_language_model_that_computes_its_activations_again() -> None:
    assert_same(lambda: train(lambda: Language(checkpointed=True), OPTIMIZERS["AdamW foreach"], tokens))


def test_a_language_model_under_autocast() -> None:
    def program() -> list[Any]:
        with torch.autocast("cpu", torch.bfloat16):
            return train(Language, OPTIMIZERS["AdamW foreach"], tokens)

    assert_same(program)


def test_a_convolutional_network() -> None:
    def make() -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.MaxPool2d(2),
            nn.Conv2d(4, 4, 3, bias=False, groups=2), nn.GroupNorm(2, 4), nn.SiLU(), nn.AdaptiveAvgPool2d(1),
            nn.Flatten(), nn.Linear(4, 2),
        )  # fmt: skip

    assert_same(lambda: train(make, OPTIMIZERS["SGD foreach"], lambda: torch.randn(2, 3, 8, 8)))


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_a_recurrent_network(kind: type[nn.Module]) -> None:
    class Recurrent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = kind(3, 4)

        def forward(self, x: Tensor) -> Any:
            return self.body(x)[0]

    assert_same(lambda: train(Recurrent, OPTIMIZERS["AdamW foreach"], lambda: torch.randn(5, 2, 3)))


def test_gradients_of_gradients() -> None:
    def program() -> Any:
        x = torch.randn(3).requires_grad_()
        (first,) = torch.autograd.grad((x**3).sum(), x, create_graph=True)
        return [first, torch.autograd.grad(first.sum(), x)]

    assert_same(program)


def test_hooks_see_gradients() -> None:
    def program() -> Any:
        seen: list[Any] = []
        x = torch.randn(3).requires_grad_()
        x.register_hook(lambda grad: seen.append(grad.sum().item()))
        x.register_post_accumulate_grad_hook(lambda leaf: seen.append(leaf.grad))
        (x * 3).sum().backward()
        return seen

    assert_same(program)
