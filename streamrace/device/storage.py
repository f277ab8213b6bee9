"""Restores what a build without CUDA refuses: creating, resizing and pickling storages, ``Tensor.record_stream``."""

from __future__ import annotations

from typing import Any

import torch

from streamrace.device.overrides import overridden
from streamrace.device.sanitizer import unseen
from streamrace.device.work import place


def install() -> None:
    """Replace the functions; calls for other devices go to the original ones."""
    plain_resize = torch.UntypedStorage.resize_

    def resize_(self: torch.UntypedStorage, size: int) -> torch.UntypedStorage:
        if self.device.type != "cuda":
            return plain_resize(self, size)  # type: ignore[no-any-return]
        with unseen():
            tensor = torch.empty(0, dtype=torch.uint8, device=self.device)
            torch.ops.simgpu.resize_storage(tensor.set_(self), size)
        return self

    def record_stream(self: torch.Tensor, stream: torch.Stream) -> None:
        if not isinstance(stream, torch.Stream):
            raise RuntimeError("unknown parameter type")
        if self.device.type != "cuda" or not overridden("tensor.record_stream", stream, lambda: place(self)[0]):
            torch.ops.aten.record_stream.default(self, stream)

    plain_new = torch.UntypedStorage.__new__

    def __new__(cls: type[torch.UntypedStorage], *args: Any, **kwargs: Any) -> Any:  # noqa: N807
        device = kwargs.get("device")
        if device is None or torch.device(device).type != "cuda":
            return plain_new(cls, *args, **kwargs)
        with unseen():
            return torch.empty(args[0] if args else 0, dtype=torch.uint8, device=device).untyped_storage()

    torch.UntypedStorage.__new__ = staticmethod(__new__)  # type: ignore[assignment]
    kind: Any = torch.UntypedStorage
    plain_write, plain_read = kind._write_file, kind._set_from_file

    # For pickling, torch itself wraps the GPU's memory in a tensor that it did not allocate: copy by the host instead.
    def _write_file(self: Any, *args: Any) -> None:
        plain_write(self if self.device.type != "cuda" else self.cpu(), *args)

    def _set_from_file(self: Any, *args: Any) -> Any:
        if self.device.type != "cuda":
            return plain_read(self, *args)
        return self.copy_(plain_read(kind(self.nbytes()), *args))

    _replace(kind, "_write_file", _write_file)
    _replace(kind, "_set_from_file", _set_from_file)
    _replace(torch.UntypedStorage, "resize_", resize_)
    _replace(torch.Tensor, "record_stream", record_stream)


def _replace(kind: type[Any], name: str, function: Any) -> None:
    function.__doc__ = getattr(kind, name).__doc__
    function.__qualname__ = f"{kind.__name__}.{name}"
    setattr(kind, name, function)
