"""What bypasses the dispatcher on CPU tensors, and would not wait for the device."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed.distributed_c10d
from torch import Tensor

from repro.trace import HostStep

if TYPE_CHECKING:
    from repro.accelerator.device import Device


_PRINT = torch._tensor_str._str


def replacements(device: Device) -> Iterator[tuple[Any, str, Any]]:
    """What bypasses the dispatcher on CPU tensors and would not wait for the device.

    ``tolist``, ``numpy`` and printing read memory directly; ``record_stream`` refuses a stream class of ours;
    ``torch.save`` writes storages to a file; ``torch.tensor([a, b])`` reads each number with
    dispatch off. On CUDA each of the reads copies to the host first.
    """

    def replace(owner: Any, name: str, new: Any) -> tuple[Any, str, Any]:
        original = getattr(owner, name)
        setattr(owner, name, new(original))
        return owner, name, original

    def reading(original: Any) -> Any:
        def read(tensor: Tensor, *args: Any, **kwargs: Any) -> Any:
            if device._quiet:
                return original(tensor, *args, **kwargs)
            block = device.memory.block_of(tensor)
            if block.pinned:
                return original(tensor, *args, **kwargs)
            access = device.memory.access(tensor, block)
            duration = device.timing.kernel("read", 0, 0)
            device.launch("host::read", [access] if access else [], [], [block], duration, None)
            device.synchronize_current("read")
            instead = device.stand_in(tensor, printed=original is _PRINT)
            if instead is not None:
                return instead
            with device.quiet():
                if device.recorder is not None:
                    device.recorder.host_read(tensor)
                return original(tensor, *args, **kwargs)

        return read

    def collecting(original: Any) -> Any:
        def collect(*args: Any, **kwargs: Any) -> Any:
            if not device._quiet and (any(map(_has_tensors, args)) or _has_tensors(kwargs.get("data"))):
                device.synchronize_current("read")
            return original(*args, **kwargs)

        return collect

    def saving(original: Any) -> Any:
        def save(*args: Any, **kwargs: Any) -> Any:
            device.synchronize_all(device.sites.capture())
            return original(*args, **kwargs)

        return save

    def meeting(original: Any) -> Any:
        def meet(*args: Any, **kwargs: Any) -> Any:
            with device.quiet():
                device.timeline.drain()
            device.journal.note(HostStep("met", device.timeline.now))
            return original(*args, **kwargs)

        return meet

    # Making a process group, all ranks wait for each other outside virtual time; so nobody may wait for them in it.
    yield replace(torch.distributed.distributed_c10d, "_new_process_group_helper", meeting)
    for name in ("tolist", "numpy", "__array__"):
        yield replace(Tensor, name, reading)
    yield replace(torch._tensor_str, "_str", reading)  # printing puts all modes aside
    yield replace(Tensor, "record_stream", lambda original: lambda tensor, stream: device.record_stream(tensor, stream))
    yield replace(torch, "save", saving)
    for owner, name in ((torch, "tensor"), (torch, "as_tensor"), (Tensor, "new_tensor")):
        yield replace(owner, name, collecting)


def _has_tensors(data: Any) -> bool:
    """Is it a list, of lists, of tensors? torch makes a tensor of it by reading each one."""
    return isinstance(data, (list, tuple)) and any(isinstance(item, Tensor) or _has_tensors(item) for item in data)
