"""Computes operators on the device and on the CPU, and prints the names of those whose bits differ."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as f
from torch.nn.attention import SDPBackend, sdpa_kernel

torch.set_num_threads(1)


def numbers(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(3)).to(dtype)


def in_place(x: Tensor) -> Tensor:
    x = x.clone()
    x.add_(1).mul_(x.t().clone()).masked_fill_(x > 2, 0)[1:3].zero_()
    return x


def indexed(x: Tensor) -> Tensor:
    x = x.clone()
    x[x > 0] = 1
    x[torch.tensor([0, 2], device=x.device)] += x[:, [1]][:2]
    return x.index_add_(0, torch.tensor([1, 1], device=x.device), x[:2].clone())


def out_of_place(x: Tensor) -> Tensor:
    out = torch.empty(0, device=x.device, dtype=x.dtype)
    torch.addmm(x[0], x, x, out=out)
    return out


def overlapping(x: Tensor) -> Tensor:
    x = x.flatten().clone()
    x[1:] = x[:-1].clone()
    return torch.cat([x[::2], x[1::2]]).roll(3)


def trained(x: Tensor) -> Tensor:
    weight = torch.eye(8, device=x.device, dtype=x.dtype, requires_grad=True)
    for options in ({"foreach": True}, {"foreach": False}, {"fused": True}):
        optimizer = torch.optim.AdamW([weight], **options)
        for _ in range(2):
            (x @ weight).tanh().sum().backward()
            optimizer.step()
    return weight.detach()


def drawn(x: Tensor) -> Tensor:
    torch.manual_seed(5)
    return torch.rand(8, device=x.device)


def half_kept(x: Tensor) -> Tensor:
    torch.manual_seed(5)
    return f.dropout(x.clone(), 0.5)


def labels(x: Tensor) -> Tensor:
    return f.cross_entropy(x.float(), torch.arange(8, device=x.device))


def repeated(x: Tensor) -> Tensor:
    return x.repeat_interleave(torch.tensor([1, 2] * 4, device=x.device), dim=0)


def normalised(x: Tensor) -> Tensor:
    mean, variance = torch.zeros(8, device=x.device), torch.ones(8, device=x.device)
    return torch.stack([f.batch_norm(x.float(), mean, variance, training=True).sum(0), mean, variance])


def convolved(x: Tensor) -> Tensor:
    return f.conv2d(x.float()[None, None], torch.ones(1, 1, 3, 3, device=x.device))


def inverse(x: Tensor) -> Tensor:
    return torch.linalg.inv(x.float() + 9 * torch.eye(8, device=x.device))


def attended(x: Tensor) -> Tensor:
    with sdpa_kernel(SDPBackend.MATH):
        return f.scaled_dot_product_attention(x[None, None], x[None, None], x[None, None])


OPERATORS: dict[str, Callable[[Tensor], object]] = {
    "in place": in_place, "indexed": indexed, "out of place": out_of_place, "overlapping": overlapping,
    "trained": trained, "drawn": drawn, "half kept": half_kept, "labels": labels, "repeated": repeated,
    "normalised": normalised, "convolved": convolved, "inverse": inverse, "attended": attended,
    "nonzero": torch.nonzero, "unique": torch.unique, "is finite": torch.isfinite,
    "unique counts": lambda x: torch.unique(x > 0, return_counts=True),
    "unique consecutive": lambda x: torch.unique_consecutive(x > 0),
    "mask": lambda x: x[x > 0], "masked select": lambda x: x.masked_select(x < 0),
    "sort": lambda x: x.sort(dim=1), "topk": lambda x: x.topk(3), "cumsum": lambda x: x.cumsum(0),
    "argmax": lambda x: x.argmax(1), "var": lambda x: x.var(1), "sum": lambda x: x.sum(dtype=torch.float64),
    "layer norm": lambda x: f.layer_norm(x, (8,)), "rms norm": lambda x: f.rms_norm(x, (8,)),
    "softmax": lambda x: f.softmax(x, 1), "gelu": f.gelu, "linear": lambda x: f.linear(x, x, x[0]),
    "bmm": lambda x: torch.bmm(x[None], x[None]), "cast": lambda x: x.to(torch.bfloat16).float(),
    "embedding": lambda x: f.embedding(torch.tensor([[1, 3]], device=x.device), x),
    "where": lambda x: torch.where(x > 0, x, 2.0), "norm": lambda x: x.clamp(-1, 1).norm(),
    "equal": lambda x: torch.equal(x, x.clone()), "close": lambda x: torch.allclose(x, x),
    "bincount": lambda x: torch.bincount((x > 0).flatten().long()),
    "arange": lambda x: torch.arange(5, device=x.device) * 2,
    "foreach": lambda x: torch._foreach_mul([x, x.t()], 2.0), "item": lambda x: x[0, 0].item(),
    "any": lambda x: x.any().item(), "complex": lambda x: torch.complex(x.float(), x.float()).conj() * 2,
    "pad": lambda x: f.pad(x, (1, 1)), "flip": lambda x: x.tril().flip(0),
    "interpolate": lambda x: f.interpolate(x[None, None].float(), scale_factor=2),
    "unfold": lambda x: x.unfold(1, 2, 2).amax(-1),
}  # fmt: skip


def bits(value: object) -> object:
    if isinstance(value, Tensor):
        flat = value.cpu().resolve_conj().contiguous().view(-1)
        return value.dtype, tuple(value.shape), flat.view(torch.uint8).tolist()
    return [bits(one) for one in value] if isinstance(value, list | tuple) else value


for dtype in (torch.float32, torch.bfloat16, torch.float64):
    x = numbers(8, 8, dtype=dtype)
    for name, operator in OPERATORS.items():
        if bits(operator(x.cuda())) != bits(operator(x)):
            print(dtype, name)
print(3 * len(OPERATORS), "compared")
