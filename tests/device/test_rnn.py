"""LSTM, GRU and RNN by the CPU's kernels: modules, cells and packed sequences, forward and backward."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from judged import story
from torch import Tensor, nn
from torch.nn.utils import rnn

_MODULES = {
    "lstm": lambda: nn.LSTM(5, 7, num_layers=2, bidirectional=True),
    "lstm-projected": lambda: nn.LSTM(5, 7, proj_size=3, batch_first=True),
    "lstm-dropout": lambda: nn.LSTM(5, 7, num_layers=3, dropout=0.5),
    "gru": lambda: nn.GRU(5, 7, num_layers=2, bias=False),
    "gru-bf16": lambda: nn.GRU(5, 7, dtype=torch.bfloat16),
    "rnn": lambda: nn.RNN(5, 7, nonlinearity="relu", bidirectional=True),
}


def flat(made: Any) -> list[Tensor]:
    if isinstance(made, rnn.PackedSequence):
        return [made.data]
    return [made] if isinstance(made, Tensor) else [one for part in made for one in flat(part)]


def passes(net: nn.Module, given: Any, device: str) -> list[Tensor]:
    """Results and gradients, on the CPU."""
    torch.manual_seed(1)
    net.to(device)
    results = flat(net(given.to(device)))
    sum(one.float().square().sum() for one in results).backward()
    torch.manual_seed(2)
    return [one.detach().cpu() for one in (*results, *[p.grad for p in net.parameters()], torch.rand(3, device=device))]


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("kind", list(_MODULES))
def test_a_recurrent_network_gives_the_bits_of_the_cpu(kind: str, packed: bool) -> None:
    def make() -> tuple[nn.Module, Any]:
        torch.manual_seed(0)
        net = _MODULES[kind]()
        given = torch.randn(4, 3, 5).to(next(net.parameters()).dtype)
        if not packed:
            return net, given
        lengths = torch.tensor([4, 2, 3] if not net.batch_first else [3, 1, 2, 3])
        return net, rnn.pack_padded_sequence(given, lengths, batch_first=net.batch_first, enforce_sorted=False)

    for one, other in zip(passes(*make(), "cpu"), passes(*make(), "cuda"), strict=True):
        assert one.dtype is other.dtype and one.shape == other.shape
        assert torch.equal(one, other)


@pytest.mark.parametrize("kind", [nn.LSTMCell, nn.GRUCell, nn.RNNCell])
def test_a_cell_gives_the_bits_of_the_cpu(kind: type[nn.Module]) -> None:
    def run(device: str) -> list[Tensor]:
        torch.manual_seed(0)
        return passes(kind(5, 7), torch.randn(3, 5), device)

    assert all(torch.equal(one, other) for one, other in zip(run("cpu"), run("cuda"), strict=True))


def test_without_gradients_and_in_inference_mode() -> None:
    for mode in (torch.no_grad, torch.inference_mode):
        torch.manual_seed(0)
        net, given = nn.LSTM(5, 7), torch.randn(4, 3, 5)
        with mode():
            here, there = net(given)[0], net.cuda()(given.cuda())[0]
        assert torch.equal(here, there.cpu()) and not there.requires_grad


def test_its_reads_and_writes_are_accesses_when_its_time_has_come() -> None:
    net = nn.GRU(4, 4).cuda()
    given = torch.zeros(2, 3, 4, device="cuda")
    with story(gru=1000) as told:
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.default_stream())
        with torch.cuda.stream(side):
            made = net(given)[0]
        given.fill_(1)  # the kernel is slow: it reads the ones
        side.synchronize()
    expected = net(torch.ones_like(given))[0]
    assert torch.equal(made, expected)
    assert ("aten::gru", "aten::fill_") in told.pairs


def test_a_second_derivative_is_refused() -> None:
    net, given = nn.GRU(4, 4).cuda(), torch.ones(2, 3, 4, device="cuda", requires_grad=True)
    (slope,) = torch.autograd.grad(net(given)[0].sum(), given, create_graph=True)
    with pytest.raises(RuntimeError, match="differentiate twice"):
        (slope.sum() + given.sum()).backward()
