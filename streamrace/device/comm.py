"""Moves tensors between the GPUs of one process: for ``torch.nn.DataParallel``.

Reimplements torch's functions (``torch/csrc/cuda/comm.cpp``): the same copies in the same order. Each copy names its
device, so a device that the process does not have (``--gpus``) is refused where it is named. Sums of gradients are
added up by torch's own functions, where a GPU would call NCCL for one process.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


def _to(tensor: Tensor, device: int) -> Tensor:
    return tensor.to(torch.device("cuda", device), non_blocking=True)


def _broadcast(tensor: Tensor, devices: Sequence[int]) -> list[Tensor]:
    return [_to(tensor, device) for device in devices]


def _broadcast_out(tensor: Tensor, outs: Sequence[Tensor]) -> Sequence[Tensor]:
    for out in outs:
        out.copy_(tensor, non_blocking=True)
    return outs


def _broadcast_coalesced(tensors: Sequence[Tensor], devices: Sequence[int], _: int) -> list[list[Tensor]]:
    return [[_to(tensor, device) for tensor in tensors] for device in devices]


def _scatter(
    tensor: Tensor, devices: Sequence[int], sizes: Sequence[int] | None, dim: int, streams: Sequence[Any] | None
) -> list[Tensor]:
    parts = tensor.split_with_sizes(list(sizes), dim) if sizes is not None else tensor.chunk(len(devices), dim)
    copies = []
    for number, (part, device) in enumerate(zip(parts, devices, strict=False)):
        with torch.cuda.stream(streams[number] if streams is not None else None):
            copies.append(_to(part, device))
    return copies


def _scatter_out(tensor: Tensor, outs: Sequence[Tensor], dim: int, streams: Sequence[Any] | None) -> Sequence[Tensor]:
    parts = tensor.split_with_sizes([out.size(dim) for out in outs], dim)
    for number, (part, out) in enumerate(zip(parts, outs, strict=True)):
        with torch.cuda.stream(streams[number] if streams is not None else None):
            out.copy_(part, non_blocking=True)
    return outs


def _gather_out(tensors: Sequence[Tensor], out: Tensor, dim: int) -> Tensor:
    for part, tensor in zip(out.split_with_sizes([tensor.size(dim) for tensor in tensors], dim), tensors, strict=True):
        part.copy_(tensor, non_blocking=out.is_cuda)
    return out


def _gather(tensors: Sequence[Tensor], dim: int, destination: int | None) -> Tensor:
    sizes = list(tensors[0].shape)
    sizes[dim] = sum(tensor.size(dim) for tensor in tensors)
    index = torch.cuda.current_device() if destination is None else destination
    device = torch.device("cpu") if index == -1 else torch.device("cuda", index)
    return _gather_out(tensors, torch.empty(sizes, dtype=tensors[0].dtype, device=device), dim)


def install() -> None:
    """Install the functions of ``torch._C`` for this that a CUDA build has."""
    c: Any = torch._C
    nccl: Any = torch.cuda.nccl
    nccl.is_available = lambda _: False
    c._broadcast, c._broadcast_out, c._broadcast_coalesced = _broadcast, _broadcast_out, _broadcast_coalesced
    c._scatter, c._scatter_out, c._gather, c._gather_out = _scatter, _scatter_out, _gather, _gather_out
