"""Real torch programs, one line each: on the device they give the bits that they give on the CPU."""

from __future__ import annotations

import copy
import io
import pickle
import re
import struct
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - as everybody calls it
from drawn import AsTheDevice
from judged import story
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

R = torch.randn


def then(*steps: Any) -> Any:
    """The value of the last step; the others are done for what they do."""
    return steps[-1]


def ints(*shape: int, high: int = 9) -> Tensor:
    return torch.randint(1, high, shape)


PROGRAMS: dict[str, Callable[[], Any]] = {
    # in place, out=, functional
    "in place": lambda: then(x := R(4), x.add_(1), x.mul_(x), x.sub_(R(4)).clamp_(min=0), x),
    "out=": lambda: then(o := torch.empty(3), torch.add(R(3), R(3), out=o), o),
    "out= grows": lambda: torch.add(R(3), R(3), out=torch.empty(0)),
    "out= is a view": lambda: then(o := torch.zeros(4, 4), torch.mul(R(4), 2, out=o[1]), o),
    "out= of two": lambda: torch.max(R(4, 4), 1, out=(torch.empty(0), torch.empty(0, dtype=torch.long))),
    "out= of a size that depends on data": lambda: torch.nonzero(R(9) > 0, out=torch.empty(0, dtype=torch.long)),
    "masked_select out=": lambda: then(x := R(9), torch.masked_select(x, x > 0, out=torch.empty(0))),
    # views
    "narrow": lambda: then(x := R(6), x.narrow(0, 2, 3).add_(1), x),
    "transpose": lambda: R(3, 4).t() @ R(3, 2),
    "expand": lambda: [R(3, 1).expand(3, 4) + 1, R(4).expand(2, 3, 4).permute(2, 0, 1).exp()],
    "as_strided": lambda: then(x := R(8), x.as_strided((3, 2), (2, 1), 1).mul_(2), x),
    "view as another dtype": lambda: [R(4).view(torch.int32) + 1, R(4).view(torch.uint8)],
    "views in place": lambda: then(x := R(2, 1, 3), x.add_(1), x.squeeze_(1), x.t_(), x.unsqueeze_(0), x),
    "write through a view": lambda: then(x := R(3, 3), x.__setitem__((slice(None), 1), 5), x[0].zero_(), x),
    "write through each of many views": lambda: then(
        x := torch.zeros(3, 4),
        [
            part.add_(n)
            for views in (x.split(2), x.split([1, 3], 1), x.chunk(3, 1), x.unbind(1), x.tensor_split((1,)))
            for n, part in enumerate(views)
        ],
        x,
    ),
    "resize": lambda: then(x := torch.arange(6.0), x.resize_(2, 2), x.resize_(3, 2), x + 1),
    "resize beyond": lambda: then(x := R(4) * 2, x.resize_(8), x[4:].fill_(1), x),
    "resize from nothing": lambda: then(x := torch.empty(0), x.resize_(3), x.fill_(2), x),
    # several results
    "max": lambda: R(4, 5).max(1),
    "topk, sort, kthvalue": lambda: [torch.topk(R(9), 3), R(9).sort(), torch.kthvalue(R(5), 2)],
    "split, unbind, chunk": lambda: [x * 2 for x in (*R(6).split(4), *R(2, 3).unbind(0), *R(5).chunk(2))],
    "results that are not there": lambda: torch.autograd.grad(
        F.layer_norm(then(x := R(3, 4).requires_grad_(), x), (4,)).pow(2).sum(), x
    ),
    "var_mean, aminmax": lambda: [torch.var_mean(R(9)), torch.aminmax(R(9))],
    # lists
    "foreach": lambda: then(
        x := [R(3), R(4)], torch._foreach_add_(x, 1), [torch._foreach_mul(x, x), torch._foreach_norm(x)]
    ),
    "cat, stack": lambda: [torch.cat([R(2), R(3)]), torch.stack([R(2), R(2)], 1), torch.cat([R(2, 0), R(2, 1)], 1)],
    # dtypes
    "dtypes": lambda: [
        (R(8) * 3).to(t) + 1 for t in (torch.bfloat16, torch.float16, torch.float64, torch.int8, torch.int32)
    ],
    "bool": lambda: [(R(4) > 0) & (R(4) > 0), (R(4) > 0).sum(), torch.ones(2, dtype=torch.bool) + 1],
    "fp8, uint16": lambda: [R(4).to(torch.float8_e4m3fn).float(), ints(4).to(torch.uint16).long()],
    "numbers of Python": lambda: [ints(3) * 2.5, ints(3) * 2, (R(2) > 0) + 1, (R(2) > 0) + True, 1 - R(2).half()],
    "a True is no 1": lambda: [torch.full((2,), 1), torch.full((2,), True), torch.full((2,), 1 + 0j)],
    "0-dim tensors": lambda: [torch.tensor(2.5) * ints(3), R(3).half() * torch.tensor(2.0), R(()) + R(())],
    "integer division": lambda: [ints(4) // ints(4), ints(4) % ints(4), torch.div(ints(4), ints(4))],
    "arange": lambda: [torch.arange(0, 1.0, 0.25), torch.arange(0, 2.0, 0.25), torch.arange(5), torch.arange(9)],
    "zero-size": lambda: [torch.empty(0) + 1, torch.empty(0, 3).sum(0), torch.zeros(3, 0) @ torch.zeros(0, 2)],
    "complex": lambda: then(a := R(3, 3, dtype=torch.complex64), [a.mH @ a, a.conj() + a, a.conj().imag @ a.real]),
    "complex read": lambda: then(a := R(3, dtype=torch.cfloat), a.conj().resolve_conj().cpu().numpy().tolist()),
    # indexing
    "masked_fill, where": lambda: then(x := R(4, 4), [x.masked_fill(x > 0, 0), torch.where(x > 0, x, -x)]),
    "index by a mask": lambda: then(x := R(9), x.__setitem__(x < -1, 0), x[x > 0]),
    "index_put_": lambda: then(x := R(4, 4), x.index_put_((ints(3, high=4),), R(3, 4), accumulate=True), x),
    "which dimension is indexed": lambda: then(x := R(4, 4, 4), i := ints(2, high=4), [x[:, i, i], x[i, :, i]]),
    "nonzero, unique": lambda: [(R(9) > 0).nonzero(), torch.unique(ints(9), return_counts=True)],
    "scatter, gather": lambda: then(
        i := ints(3, 3, high=3), [torch.zeros(3, 3).scatter_add_(1, i, R(3, 3)), R(3, 3).gather(1, i)]
    ),
    # reading
    "read": lambda: then(x := R(3) * 2, [x[0].item(), bool(x[1] > 0), x.tolist(), int(x.sum()), float(x.mean())]),
    "numpy": lambda: [(R(3) * 2).cpu().numpy().tolist(), [float(v) for v in R(3)], 1.0 in torch.ones(3)],
    "print": lambda: (
        [re.sub(r",\s+device='cuda:0'", "", repr(one)) for one in (R(3, 3) * 2, R(()), torch.empty(0), R(2000) + 1)]
        + [f"{R(()):.2f}"]
    ),
    "equal": lambda: then(x := R(3), [torch.equal(x, x + 0), torch.equal(x, x + 1), torch.allclose(x, x)]),
    "tensors made of tensors": lambda: [
        torch.tensor([R(3).sum(), R(2).sum()]),
        torch.as_tensor([[R(1).sum()]]),
        R(2).new_tensor([R(1).sum(), 3.0]),
    ],
    "save and load": lambda: then(f := io.BytesIO(), torch.save({"a": R(3) * 2}, f), f.seek(0), torch.load(f)),
    "copies": lambda: [copy.deepcopy(R(3) * 2), copy.copy(R(3) * 2), pickle.loads(pickle.dumps(R(3) * 2))],
    "data is exchanged after a launch": lambda: then(x := R(3), y := x * 2, setattr(x, "data", R(2)), [x, y]),
    "set_ after a launch": lambda: then(x := R(3), y := x * 2, x.set_(R(2)), [x, y]),
    # random numbers
    "random": lambda: [torch.randn(3), torch.rand(2), torch.randperm(5), ints(3), R(20)],
    "random in place": lambda: [R(3).uniform_(), R(3).bernoulli_(0.3), R(3).normal_(), R(3).exponential_(), R(2)],
    "dropout": lambda: [F.dropout(R(9), 0.5), F.dropout(R(9), 0.1), torch.native_dropout(R(9), 0.5, False), R(2)],
    "generator": lambda: then(
        g := torch.Generator(torch.get_default_device()).manual_seed(3),
        [R(3), torch.randn(3, generator=g), R(3), torch.rand(3, generator=g.manual_seed(4))],
    ),
    "fewer or more numbers, by the values": lambda: [
        torch.poisson(torch.full((5,), 4.0)),
        F.rrelu(R(9), training=True),
        R(2),
    ],
    "multinomial": lambda: [torch.multinomial(torch.rand(4), 2), torch.multinomial(torch.rand(4), 9, True), R(2)],
    # mathematics
    "einsum": lambda: torch.einsum("bij,bjk->bik", R(2, 3, 4), R(2, 4, 5)),
    "softmax": lambda: [R(3, 4).softmax(d) for d in (0, 1)] + [R(3, 4).log_softmax(-1)],
    "linalg": lambda: then(
        a := R(3, 3), s := a @ a.T + torch.eye(3), [torch.linalg.cholesky(s), torch.linalg.inv(s), torch.linalg.svd(s)]
    ),
    "fft": lambda: [
        torch.fft.fft(R(8)).abs(),
        torch.stft(R(64), 16, window=torch.hann_window(16), return_complex=True),
    ],
    "interpolate": lambda: [F.interpolate(R(1, 1, 4), scale_factor=s, mode="linear") for s in (1.5, 2.0)],
    "reductions": lambda: [
        R(3, 4).sum((0, 1), keepdim=True),
        R(3, 4).prod(1),
        R(9).std(),
        R(9).median(),
        R(4).cumsum(0),
    ],
    "functional": lambda: [torch.vmap(lambda x: x * 2)(R(3, 2)), torch.func.grad(lambda x: (x * x).sum())(R(3))],
    "quantile": lambda: torch.quantile(R(10), 0.3),
}


def bits(value: Any) -> Any:
    """Everything there is to compare: dtype, shape, stride and bytes of tensors, whatever they lie in."""
    if isinstance(value, Tensor):
        value = value.detach().cpu()
        plain = torch.zeros(value.shape, dtype=value.dtype, device="cpu").copy_(value)
        if plain.dtype.is_complex:
            plain = torch.view_as_real(plain)
        data = bytes(plain.contiguous().view(-1).view(torch.uint8).numpy()) if plain.numel() else b""
        return value.dtype, tuple(value.shape), value.stride(), data
    if isinstance(value, float):
        return struct.pack("d", value)
    if isinstance(value, dict):
        return {key: bits(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [bits(item) for item in value]
    return value


def on(device: str, program: Callable[[], Any]) -> Any:
    """A program that names no device, on this one."""
    torch.manual_seed(7)
    with torch.device(device), AsTheDevice() if device == "cpu" else nullcontext():
        return bits(program())


def different(programs: dict[str, Callable[[], Any]]) -> dict[str, Any]:
    """Of those that do not give the same, what both give."""
    both = {name: (on("cpu", one), on("cuda", one)) for name, one in programs.items()}
    return {name: given for name, given in both.items() if given[0] != given[1]}


def test_the_same_bits() -> None:
    found = different(PROGRAMS)
    assert found == {}, found


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
        x = x + F.dropout(self.out(mixed), 0.5, self.training)
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


def train(make: Callable[[], nn.Module], optimizer: Callable[..., torch.optim.Optimizer]) -> list[Any]:
    model = make()
    stepper = optimizer(model.parameters())
    told: list[Any] = []
    for _ in range(3):
        loss = model(torch.randint(0, 32, (2, 8)))
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
        stepper.step()
        stepper.zero_grad(set_to_none=len(told) % 4 == 0)
        told += [loss.item(), norm]
    return [*told, dict(model.state_dict())]


OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "AdamW foreach": lambda p: torch.optim.AdamW(p, foreach=True),
    "AdamW fused": lambda p: torch.optim.AdamW(p, fused=True),
    "AdamW fused, its rate on the host": lambda p: torch.optim.AdamW(p, lr=torch.tensor([0.1]), fused=True),
    "AdamW one by one": lambda p: torch.optim.AdamW(p, foreach=False, amsgrad=True),
    "SGD foreach": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, foreach=True),
    "SGD fused": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, fused=True),
    "Adagrad": lambda p: torch.optim.Adagrad(p, foreach=True),
}


def gradients_of_gradients() -> Any:
    x = torch.randn(3).requires_grad_()
    (first,) = torch.autograd.grad((x**3).sum(), x, create_graph=True)
    return [first, torch.autograd.grad(first.sum(), x)]


def test_a_language_model_trains_to_the_same_bits() -> None:
    """With each optimizer, in each dtype, and where it computes its activations again.

    Dropout is a GPU's own operator there, which rounds otherwise in half precision unless it divides by
    a power of two.
    """
    adam = OPTIMIZERS["AdamW foreach"]
    programs = {name: lambda make=make: train(Language, make) for name, make in OPTIMIZERS.items()}
    for dtype in (torch.bfloat16, torch.float16):
        programs[str(dtype)] = lambda dtype=dtype: train(lambda: Language(dtype), adam)
    found = different({**programs, "gradients of gradients": gradients_of_gradients})
    assert not found, sorted(found)
    plain = on("cuda", lambda: train(Language, adam))
    assert on("cuda", lambda: train(lambda: Language(checkpointed=True), adam)) == plain


def test_the_default_dtype_is_that_of_the_moment_of_issue() -> None:
    def program() -> list[Tensor]:
        made = []
        for dtype in (torch.float32, torch.bfloat16, torch.float64):
            torch.set_default_dtype(dtype)
            made += [torch.ones(3), torch.rand(3), torch.arange(1, 4) / 3, torch.full((2,), 0.1)]
        torch.set_default_dtype(torch.float32)
        return made

    def inference() -> list[Tensor]:
        with torch.inference_mode():
            made = [R(3) * 2, torch.tensor([1.0, 2.0]).add_(1)]
        return [one.clone() for one in made]

    assert different({"dtypes": program, "inference mode": inference}) == {}


def test_meta_tensors_are_not_the_devices() -> None:
    with story() as told:
        a, b = torch.empty(3, device="meta"), torch.zeros(3, device="meta")
        made = (a, b, a + b, a.clone().fill_(1), torch.ones(2, 3, device="meta").t())
    assert {one.device.type for one in made} == {"meta"}
    assert told.launches == []


def test_a_wrong_call_raises_when_it_is_issued() -> None:
    with pytest.raises(RuntimeError, match="size of tensor"):
        R(3, device="cuda") + R(4, device="cuda")
    with pytest.raises(RuntimeError, match="mat1 and mat2"):
        R(3, 3, device="cuda") @ R(4, 4, device="cuda")
    assert (torch.ones(2, device="cuda") + 1).tolist() == [2, 2]
