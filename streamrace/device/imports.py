"""Libraries of CUDA kernels, met while they are imported: they are refused by name.

A library that is not installed cannot be found, as ever, but the message says that there is no point in installing it.
One that is installed loads a compiled part, which asks for CUDA's libraries: the loader's complaint becomes a sentence.
Both stay an ImportError, so a program that tries, and goes another way, goes it. ``importlib.util.find_spec``, by which
programs ask whether a library is there, answers as ever.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ExtensionFileLoader, ModuleSpec
from types import ModuleType
from typing import Any

from streamrace.device import refusals

_ATTENTION = "use torch.nn.functional.scaled_dot_product_attention (transformers: attn_implementation='sdpa')"
_ON_THE_HOST = "compute it with torch's own operators"
_INSTEAD = {
    "flash_attn": _ATTENTION,
    "flash_attn_interface": _ATTENTION,
    "xformers": _ATTENTION,
    "apex": "use torch's own: torch.optim with fused=True, torch.nn.LayerNorm, torch.autocast",
    "amp_C": "use torch's own: torch.nn.utils.clip_grad_norm_, torch.optim with foreach=True",
    "transformer_engine": "use torch's own layers, and bfloat16 instead of FP8",
    "bitsandbytes": "use torch.optim and unquantized weights",
    "triton": "take the way without Triton: it compiles for a GPU that is there",
    "cupy": _ON_THE_HOST,
    "pycuda": _ON_THE_HOST,
    "cuda": _ON_THE_HOST,
    "mamba_ssm": _ON_THE_HOST,
    "causal_conv1d": _ON_THE_HOST,
    "torch_tensorrt": "run the model as it is",
    "tensorrt": "run the model as it is",
    "nvidia.dali": "use torch.utils.data.DataLoader",
}
# What a compiled part asks for that needs a GPU. Beginnings of the names of shared libraries.
_OF_CUDA = ("libcud", "libcublas", "libcufft", "libcurand", "libcusolver", "libcusparse", "libnv", "libnccl",
            "libtorch_cuda", "libc10_cuda", "libtorch_hip", "libc10_hip")  # fmt: skip
_AFTER: dict[str, Callable[[ModuleType], None]] = {
    "torch.utils.cpp_extension": refusals.extensions,
    "torch.utils._triton": refusals.has_triton,
    "triton.runtime.jit": refusals.triton,
}


def install() -> None:
    """Stand first and last among those who find modules."""
    for name, change in _AFTER.items():
        if name in sys.modules:
            change(sys.modules[name])
    sys.meta_path.insert(0, _First())
    sys.meta_path.append(_Last())
    loader: Any = ExtensionFileLoader
    plain = loader.create_module

    def create_module(self: ExtensionFileLoader, spec: ModuleSpec) -> ModuleType:
        try:
            return plain(self, spec)  # type: ignore[no-any-return]
        except ImportError as error:
            missing = str(error).split(":")[0]
            if not missing.startswith(_OF_CUDA):
                raise
            top = spec.name.split(".")[0]
            raise ImportError(_sentence(f"'{spec.name}' is compiled for CUDA (it asks for {missing}) and", top),
                              name=spec.name, path=spec.origin) from error  # fmt: skip

    loader.create_module = create_module


def _sentence(what: str, library: str) -> str:
    return f"streamrace: {what} cannot run on a simulated GPU: {_INSTEAD.get(library, _ON_THE_HOST)}"


class _First(importlib.abc.MetaPathFinder):
    """Lets a few modules be loaded as ever, and changes them then."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name not in _AFTER:
            return None
        for finder in sys.meta_path:
            find = None if finder is self else getattr(finder, "find_spec", None)
            spec: ModuleSpec | None = find(name, path, target) if find else None
            if spec is not None and spec.loader is not None:
                _change_when_loaded(spec.loader, _AFTER[name])
                return spec
        return None


def _change_when_loaded(loader: Any, change: Callable[[ModuleType], None]) -> None:
    load = loader.exec_module

    def exec_module(module: ModuleType) -> None:
        load(module)
        change(module)

    loader.exec_module = exec_module


class _Last(importlib.abc.MetaPathFinder):
    """Comes to what nobody found."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> None:
        if name in _INSTEAD and _imported():
            raise ModuleNotFoundError(
                f"No module named '{name}'. " + _sentence(f"'{name}' is a library of CUDA kernels and", name), name=name
            )


def _imported() -> bool:
    """Is this an import, and not the question whether there is such a module (``importlib.util.find_spec``)?"""
    frame: Any = sys._getframe(2)
    while frame is not None and frame.f_globals.get("__name__") == "importlib._bootstrap":
        if frame.f_code.co_name == "_find_and_load":
            return True
        frame = frame.f_back
    return False
