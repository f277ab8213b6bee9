"""Moves tensors between the GPUs of one process: for ``torch.nn.DataParallel``.

Reimplements torch's functions (``torch/csrc/cuda/comm.cpp``): the same checks, and the same copies in the same order.
Each copy names its device, so a device that the process does not have (``--gpus``) is refused where it is named. Sums
of gradients are added up by torch's own functions, where a GPU would call NCCL for one process.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch._prims_common import suggest_memory_format


def _check(condition: object, sentence: str) -> None:
    if not condition:
        raise RuntimeError(sentence)


def _to(tensor: Tensor, device: int) -> Tensor:
    _check(device >= 0, f"Expected non-negative device index, but got {device}")
    return tensor.to(torch.device("cuda", device), non_blocking=True)


def _broadcast(tensor: Tensor, devices: Sequence[int]) -> list[Tensor]:
    return [_to(tensor, device) for device in devices]


def _broadcast_out(tensor: Tensor, outs: Sequence[Tensor]) -> Sequence[Tensor]:
    _on_devices(outs, "output")
    for index, out in enumerate(outs):
        _check(
            out.shape == tensor.shape,
            f"Expected all output tensors to have same shape as the source tensor {list(tensor.shape)}, but output "
            f"tensor at index {index} has shape {list(out.shape)}",
        )
    for out in outs:
        out.copy_(tensor, non_blocking=True)
    return outs


def _broadcast_coalesced(tensors: Sequence[Tensor], devices: Sequence[int], _: int) -> list[list[Tensor]]:
    _check(
        all(tensor.is_cuda and tensor.get_device() == devices[0] for tensor in tensors),
        f"All tensors must be on devices[0]: {devices[0]}",
    )
    return [[_to(tensor, device) for tensor in tensors] for device in devices]


def _scatter(
    tensor: Tensor, devices: Sequence[int], sizes: Sequence[int] | None, dim: int, streams: Sequence[Any] | None
) -> list[Tensor]:
    _check(devices, "Expected at least one device to scatter to")
    _check(
        sizes is None or len(sizes) == len(devices),
        "Expected devices and chunk_sizes to be of same length, but got "
        f"len(devices) = {len(devices)} and len(chunk_sizes) = {len(sizes or ())}",
    )
    parts = tensor.split_with_sizes(list(sizes), dim) if sizes is not None else tensor.chunk(len(devices), dim)
    copies = []
    for index, (part, device) in enumerate(zip(parts, devices, strict=False)):
        with torch.cuda.stream(_stream(streams, index, device)):
            copies.append(_to(part, device))
    return copies


def _scatter_out(tensor: Tensor, outs: Sequence[Tensor], dim: int, streams: Sequence[Any] | None) -> Sequence[Tensor]:
    _check(outs, "Expected at least one output tensor to scatter to")
    _on_devices(outs, "output")
    size = tensor.size(dim)
    dim %= tensor.dim()
    for index, out in enumerate(outs):
        _check(
            out.dim() == tensor.dim() and _without(out, dim) == _without(tensor, dim),
            f"Output tensor at index {index} has incorrect shape: {list(out.shape)}. Expected same shape except for "
            f"scatter dim {dim} as the source tensor: {list(tensor.shape)}",
        )
    sizes = [out.size(dim) for out in outs]
    _check(
        sum(sizes) == size,
        f"Total size for output tensors along scatter dim {dim} does not match the source tensor size at dim {dim}. "
        f"Expected {size}, but got total size {sum(sizes)}",
    )
    for index, (part, out) in enumerate(zip(tensor.split_with_sizes(sizes, dim), outs, strict=True)):
        with torch.cuda.stream(_stream(streams, index, out.get_device())):
            out.copy_(part, non_blocking=True)
    return outs


def _gather_out(tensors: Sequence[Tensor], out: Tensor, dim: int) -> Tensor:
    shape = _gathered_shape(tensors, dim)
    _check(list(out.shape) == shape, f"Expected out tensor to have shape {shape}, but got {list(out.shape)}")
    for part, tensor in zip(out.split_with_sizes([tensor.size(dim) for tensor in tensors], dim), tensors, strict=True):
        part.copy_(tensor, non_blocking=out.is_cuda)
    return out


def _gather(tensors: Sequence[Tensor], dim: int, destination: int | None) -> Tensor:
    shape = _gathered_shape(tensors, dim)
    formats = {suggest_memory_format(tensor) for tensor in tensors}
    chosen = formats.pop() if len(formats) == 1 else torch.contiguous_format
    index = torch.cuda.current_device() if destination is None else destination
    device = torch.device("cpu") if index == -1 else torch.device("cuda", index)
    return _gather_out(tensors, torch.empty(shape, dtype=tensors[0].dtype, device=device, memory_format=chosen), dim)


def _gathered_shape(tensors: Sequence[Tensor], dim: int) -> list[int]:
    """Return the shape of the tensors joined along ``dim``. Raise RuntimeError for those that cannot be."""
    _check(tensors, "Expected at least one tensor to gather from")
    _on_devices(tensors, "input")
    first = tensors[0]
    shape = list(first.shape)
    for index, tensor in enumerate(tensors):
        _check(
            tensor.dim() == first.dim(),
            f"Expected all input tensors to have the same number of dimensions, but tensor at index {index} has "
            f"{tensor.dim()} dimensions, (expected {first.dim()})",
        )
        shape[dim] = tensor.size(dim)
        _check(
            list(tensor.shape) == shape,
            f"Input tensor at index {index} has invalid shape {list(tensor.shape)}, but expected {shape}",
        )
    shape[dim] = sum(tensor.size(dim) for tensor in tensors)
    return shape


def _on_devices(tensors: Sequence[Tensor], kind: str) -> None:
    name = "tensor" if kind == "input" else f"{kind} tensor"
    for index, tensor in enumerate(tensors):
        _check(
            tensor.is_cuda,
            f"Expected all {kind} tensors to be CUDA tensors, but {name} at index {index} has device '{tensor.device}'",
        )


def _stream(streams: Sequence[Any] | None, index: int, device: int) -> Any:
    stream = streams[index] if streams is not None and index < len(streams) else None
    was = device if stream is None else stream.device_index
    _check(
        was == device,
        f"Expected the device associated with the stream at index {index} (was {was}) to match the device supplied at "
        f"that index (expected {device})",
    )
    return stream


def _without(tensor: Tensor, dim: int) -> list[int]:
    return [size for index, size in enumerate(tensor.shape) if index != dim]


def install() -> None:
    """Install the functions of ``torch._C`` for this that a CUDA build has."""
    c: Any = torch._C
    nccl: Any = torch.cuda.nccl
    nccl.is_available = lambda _: False
    c._broadcast, c._broadcast_out, c._broadcast_coalesced = _broadcast, _broadcast_out, _broadcast_coalesced
    c._scatter, c._scatter_out, c._gather, c._gather_out = _scatter, _scatter_out, _gather, _gather_out
