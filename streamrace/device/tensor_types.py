"""Provides ``torch.cuda.FloatTensor`` and the like, and ``torch.set_default_tensor_type`` with such a type.

These types exist in a build with CUDA: calling one creates a tensor of the device, ``isinstance`` checks device and
dtype.
"""

from __future__ import annotations

from typing import Any

import torch

_DTYPES = {
    "BFloat16": torch.bfloat16, "Bool": torch.bool, "Byte": torch.uint8, "Char": torch.int8, "Double": torch.float64,
    "Float": torch.float32, "Half": torch.float16, "Int": torch.int32, "Long": torch.int64, "Short": torch.int16,
}  # fmt: skip


_SAME = {"layout": torch.strided, "is_cuda": True, "is_sparse": False, "__module__": "torch.cuda"}


class _TensorType(type):
    dtype: torch.dtype

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, torch.Tensor) and instance.is_cuda and instance.dtype is cls.dtype

    def __call__(cls, *args: Any, device: Any = None) -> torch.Tensor:
        """Create a tensor like the host's type of that name: from sizes, a sequence or a tensor."""
        device = "cuda" if device is None else device
        if len(args) == 1 and isinstance(args[0], cls):
            tensor: torch.Tensor = args[0].alias()
            return tensor
        if all(isinstance(arg, int) for arg in args) or (len(args) == 1 and isinstance(args[0], torch.Size)):
            return torch.empty(*args or (0,), dtype=cls.dtype, device=device)
        host: Any = getattr(torch, cls.__name__.rpartition(".")[2])
        tensor = host(*args)
        return tensor.to(device)


def install() -> None:
    """Replace the types of a build without CUDA, which refuse to be called."""
    cuda: Any = torch.cuda
    for name, dtype in _DTYPES.items():
        # the name includes the module's, as torch asks a type for the full name (Tensor.type)
        tensor_type = _TensorType(f"torch.cuda.{name}Tensor", (), {**_SAME, "dtype": dtype})
        setattr(cuda, f"{name}Tensor", tensor_type)
    c: Any = torch._C
    plain = c._set_default_tensor_type

    def set_default(kind: Any) -> None:
        """Let tensors be created on the device from now on. ``torch.Tensor(2, 3)`` stays the host's."""
        on_device = isinstance(kind, _TensorType)
        if on_device:
            torch.set_default_dtype(kind.dtype)
        else:
            plain(kind)
        torch.set_default_device("cuda" if on_device else None)

    c._set_default_tensor_type = set_default
