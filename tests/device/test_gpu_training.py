"""Training as programs write it: autograd, optimizers, autocast, loaders, random numbers; equal to the CPU's bits."""

from __future__ import annotations

import copy
import io

import pytest
import torch
from judged import story
from torch import nn

from streamrace.trace.records import Record, Wait


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 32), nn.LayerNorm(32), nn.GELU(), nn.Linear(32, 4))


def batches(count: int = 3) -> list[tuple[torch.Tensor, torch.Tensor]]:
    numbers = torch.Generator().manual_seed(1)
    return [(torch.randn(8, 16, generator=numbers), torch.randint(0, 4, (8,), generator=numbers)) for _ in range(count)]


def train(device: str, net: nn.Module, make: object, batches: list[tuple[torch.Tensor, torch.Tensor]]) -> list[float]:
    net.to(device)
    optimizer = make(net.parameters())  # type: ignore[operator]
    losses = []
    for x, y in batches:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(net(x.to(device)), y.to(device))
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0, foreach=True)
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("kind", ["sgd", "foreach", "fused", "adagrad"])
def test_training_gives_the_bits_of_the_cpu(kind: str) -> None:
    make = {
        "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, foreach=False),
        "foreach": lambda p: torch.optim.AdamW(p, lr=0.01, foreach=True),
        "fused": lambda p: torch.optim.AdamW(p, lr=0.01, fused=True),
        "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.01, foreach=True),
    }[kind]
    here, there = model(), model()
    plain = train("cpu", here, make, batches())
    with story() as told:
        losses = train("cuda", there, make, batches())
    assert losses == plain
    for one, other in zip(here.parameters(), there.parameters(), strict=True):
        assert torch.equal(one, other.cpu())
    assert told.races == []


def test_convolution_batch_norm_and_attention() -> None:
    def run(device: str) -> list[torch.Tensor]:
        torch.manual_seed(0)
        net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2))
        x = torch.randn(2, 3, 10, 10)
        net.to(device)
        y = net(x.to(device))
        y.square().mean().backward()
        return [y.detach().cpu(), *[p.grad.cpu() for p in net.parameters()], *[b.cpu() for b in net.buffers()]]

    for one, other in zip(run("cpu"), run("cuda"), strict=True):
        assert torch.equal(one, other)
    q = torch.randn(1, 2, 5, 8)
    attended = nn.functional.scaled_dot_product_attention(q.cuda(), q.cuda(), q.cuda(), is_causal=True).cpu()
    assert torch.allclose(attended, nn.functional.scaled_dot_product_attention(q, q, q, is_causal=True), atol=1e-6)


def test_batch_norm_writes_its_statistics() -> None:
    with story() as told:
        norm = nn.BatchNorm1d(4, device="cuda")
        with torch.cuda.stream(torch.cuda.Stream()):
            torch.cuda.current_stream().wait_stream(torch.cuda.default_stream())
            norm(torch.ones(8, 4, device="cuda"))
        norm.running_mean.sum()
    assert ("aten::native_batch_norm", "aten::sum") in told.pairs


def test_backward_runs_on_the_stream_of_its_forward_and_the_engine_joins_them() -> None:
    with story(mm=1000) as told:
        side = torch.cuda.Stream()
        w = torch.ones(8, 8, device="cuda", requires_grad=True)
        side.wait_stream(torch.cuda.default_stream())
        with torch.cuda.stream(side):
            y = (w @ w).sum()
        torch.cuda.default_stream().wait_stream(side)
        y.backward()
        assert w.grad is not None and w.grad.sum().item() == 1024
    assert told.races == []
    backward = [launch for launch in told.launches if launch.kernel == "aten::mm"][1:]
    assert len(backward) == 2 and all(launch.stream == side.cuda_stream for launch in backward)
    assert len(told.of(Record)) > 2 and len(told.of(Wait)) > 2


def test_a_leaf_used_on_two_streams_has_the_sum_of_both() -> None:
    with story(mm=1000) as told:
        w = torch.ones(8, 8, device="cuda", requires_grad=True)
        streams = [torch.cuda.Stream(), torch.cuda.Stream()]
        losses = []
        for stream in streams:
            stream.wait_stream(torch.cuda.default_stream())
            with torch.cuda.stream(stream):
                losses.append((w @ w).sum())
        for stream in streams:
            torch.cuda.default_stream().wait_stream(stream)
        sum(losses).backward()
        assert w.grad is not None and w.grad.sum().item() == 2048
    assert told.races == []


def test_autocast_runs_products_in_half_precision() -> None:
    x, w = torch.randn(4, 8), torch.randn(8, 4)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        plain = x @ w
    with torch.autocast("cuda", dtype=torch.bfloat16):
        there = x.cuda() @ w.cuda()
    assert there.dtype is torch.bfloat16
    assert torch.equal(there.cpu(), plain)


def test_a_gradient_scaler_skips_a_step_that_overflows() -> None:
    w = torch.ones(4, device="cuda", requires_grad=True)
    optimizer = torch.optim.SGD([w], lr=1.0)
    scaler = torch.amp.GradScaler("cuda", init_scale=2.0)
    scaler.scale((w * float("inf")).sum()).backward()
    scaler.step(optimizer)
    scaler.update()
    assert w.tolist() == [1.0] * 4
    assert scaler.get_scale() == 1.0


def test_dropout_backward_uses_the_mask_of_its_forward() -> None:
    torch.manual_seed(0)
    x = torch.ones(64, device="cuda", requires_grad=True)
    y = nn.functional.dropout(x, 0.5)
    y.sum().backward()
    assert torch.equal(x.grad, y.detach())
    assert set(y.tolist()) == {0.0, 2.0}


class Numbers(torch.utils.data.Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 16

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((4,), float(index))


def test_a_loader_with_workers_and_pinned_memory_delivers_what_the_cpu_does() -> None:
    torch.ones(1, device="cuda")  # the device is in use before the workers are forked
    loader = torch.utils.data.DataLoader(Numbers(), batch_size=4, num_workers=2, pin_memory=True)
    delivered = []
    for batch in loader:
        assert batch.is_pinned()
        delivered.append(batch.to("cuda", non_blocking=True))
    assert torch.cat(delivered).cpu().tolist() == [[float(i)] * 4 for i in range(16)]


def test_a_model_is_copied_saved_and_loaded() -> None:
    net = model().cuda()
    twin = copy.deepcopy(net)
    file = io.BytesIO()
    torch.save(net.state_dict(), file)
    for where in ("cpu", "cuda"):
        file.seek(0)
        loaded = torch.load(file, map_location=where)
        assert all(torch.equal(loaded[name].cpu(), value.cpu()) for name, value in twin.state_dict().items())
    assert repr(torch.ones(2, device="cuda")) == "tensor([1., 1.], device='cuda:0')"
