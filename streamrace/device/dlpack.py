"""Intercepts other libraries' access to the device's memory (DLPack): no GPU exists that they could use.

Requests for the host, such as ``numpy.from_dlpack(tensor, device="cpu")``, get a copy that waits, as with CUDA.
Requests to share the device's memory are refused by name: the other library would bypass the simulated clock.
"""

from __future__ import annotations

from typing import Any

import torch

_REFUSAL = (
    "streamrace: DLPack cannot share the simulated GPU's memory with other libraries, whose kernels do not run on it: "
    "share a copy on the host (tensor.cpu()); between torch tensors use tensor.detach() or tensor.view_as(tensor)"
)
_HOST = 1  # DLDeviceType kDLCPU


def install() -> None:
    """Intercept DLPack at both ends: the tensor's method, and torch's C functions."""
    plain = torch.Tensor.__dlpack__

    def __dlpack__(self: torch.Tensor, **options: Any) -> Any:  # noqa: N807
        if self.device.type != "cuda":
            return plain(self, **options)
        target = options.pop("dl_device", None)
        if target is None or int(target[0]) != _HOST:
            raise BufferError(_REFUSAL)
        if options.pop("copy", None) is False:
            raise BufferError(
                "streamrace: the simulated GPU's memory comes to the host only by a copy, which copy=False forbids"
            )
        options.pop("stream", None)
        return plain(self.cpu(), dl_device=target, **options)

    torch.Tensor.__dlpack__ = __dlpack__  # type: ignore[method-assign]
    c: Any = torch._C
    for name in ("_to_dlpack", "_to_dlpack_versioned"):
        if hasattr(c, name):  # the second since 2.9
            setattr(c, name, _guarded(getattr(c, name)))
    torch.to_dlpack = torch.utils.dlpack.to_dlpack = c._to_dlpack


def _guarded(plain: Any) -> Any:
    def to_dlpack(tensor: torch.Tensor, **how: Any) -> Any:
        if tensor.device.type == "cuda":
            raise BufferError(_REFUSAL)
        return plain(tensor, **how)

    return to_dlpack
