"""``torch.cuda.comm`` over the devices of one process: what it copies, and what it refuses, in torch's words."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.cuda import comm

from streamrace.device import cuda, library

WRONG: dict[str, Callable[[torch.Tensor, torch.Tensor], Any]] = {
    "Expected at least one device to scatter to": lambda x, _: comm.scatter(x, ()),
    "Expected devices and chunk_sizes to be of same length": lambda x, _: comm.scatter(x, [0], chunk_sizes=(1, 1)),
    "Expected at least one output tensor to scatter to": lambda x, _: comm.scatter(x, out=[]),
    "Expected all output tensors to be CUDA tensors, but output tensor at index 1": lambda x, _: comm.scatter(
        x, out=[x[:1].clone(), x[1:].cpu()]
    ),
    "Output tensor at index 0 has incorrect shape": lambda x, _: comm.scatter(x, out=[x[None]]),
    "Total size for output tensors along scatter dim 0 does not match": lambda x, _: comm.scatter(
        x, out=[x[:1].clone()]
    ),
    "Expected the device associated with the stream at index 0": lambda x, _: comm.scatter(
        x, (0, 1), streams=[torch.cuda.Stream(1), torch.cuda.Stream(1)]
    ),
    "Expected all output tensors to be CUDA tensors, but output": lambda x, _: comm.broadcast(x, out=[x.cpu()]),
    "Expected all output tensors to have same shape as the source tensor": lambda x, y: comm.broadcast(
        x, out=[x.clone(), y[None]]
    ),
    "All tensors must be on devices": lambda x, _: comm.broadcast_coalesced([x], (1, 0)),
    "Expected at least one tensor to gather from": lambda _, __: comm.gather(()),
    "Expected all input tensors to be CUDA tensors, but tensor at index 0": lambda x, y: comm.gather((x.cpu(), y)),
    "Expected all input tensors to have the same number of dimensions": lambda x, y: comm.gather((x, y[None])),
    "Input tensor at index 1 has invalid shape": lambda x, y: comm.gather((x, y[:, :1])),
    "Expected out tensor to have shape": lambda x, y: comm.gather((x, y), out=x.clone()),
}


def two() -> None:
    library.functions().several(2)
    cuda.see(2)


def test_wrong_arguments_are_refused_in_torchs_words() -> None:
    two()
    x = torch.arange(10.0, device="cuda:0").view(2, 5)
    y = x.to("cuda:1")
    for sentence, ask in WRONG.items():
        with pytest.raises(RuntimeError, match=sentence):
            ask(x, y)


def test_right_ones_move_the_values() -> None:
    two()
    x = torch.arange(10.0, device="cuda:0").view(2, 5)
    near, far = comm.scatter(x, (0, 1), chunk_sizes=(2, 3), dim=-1)
    assert (near.device.index, far.device.index) == (0, 1)
    assert comm.gather((near, far), dim=-1, destination=1).tolist() == x.tolist()
    out = torch.empty(2, 5, device="cuda:1")
    comm.gather((near, far), dim=1, out=out)
    assert out.tolist() == x.tolist()
    parts = [torch.empty(1, 5, device="cuda:0"), torch.empty(1, 5, device="cuda:1")]
    comm.scatter(x, out=parts)
    assert torch.cat([part.cpu() for part in parts]).tolist() == x.tolist()
    same, copy = comm.broadcast(x, (0, 1))
    assert same is x
    assert copy.tolist() == x.tolist()


def test_what_is_gathered_keeps_the_format_that_all_parts_have() -> None:
    two()
    image = torch.randn(4, 3, 8, 8, device="cuda:0").contiguous(memory_format=torch.channels_last)
    both = comm.gather((image, image.to("cuda:1")))
    assert both.is_contiguous(memory_format=torch.channels_last)
    assert comm.gather((image, image.to("cuda:1").contiguous())).is_contiguous()
