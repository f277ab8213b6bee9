"""Intercepts imports of libraries with CUDA kernels: refuses them by name.

An import of a library that is not installed fails as usual, but the message adds that installing it would not help.
An installed library loads a compiled part that is linked with CUDA's libraries: this becomes an error with a clear
sentence, before the loader complains; a CPU build made from a CUDA build does have small libraries of these names
(:mod:`streamrace.device.torches`). Both are ImportErrors, so that a program with an alternative takes it.
``importlib.util.find_spec``, by which programs check for a library, answers as usual. Triton is an exception: its
interpreter runs its kernels, and without it the parts that an import needs exist (:mod:`streamrace.device.triton`).
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import mmap
import struct
import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ExtensionFileLoader, ModuleSpec
from types import ModuleType
from typing import Any, NoReturn

from streamrace.device import compiled, flexible_attention, host, inductor, refusals
from streamrace.device.triton import absent, interpreted, presence

_ATTENTION = "use torch.nn.functional.scaled_dot_product_attention (transformers: attn_implementation='sdpa')"
_ON_THE_HOST = "compute it with torch's own operators"
INSTEAD = {
    "flash_attn": _ATTENTION,
    "flash_attn_interface": _ATTENTION,
    "xformers": _ATTENTION,
    "apex": "use torch's own: torch.optim with fused=True, torch.nn.LayerNorm, torch.autocast",
    "amp_C": "use torch's own: torch.nn.utils.clip_grad_norm_, torch.optim with foreach=True",
    "transformer_engine": "use torch's own layers, and bfloat16 instead of FP8",
    "bitsandbytes": "use torch.optim and unquantized weights",
    "cupy": _ON_THE_HOST,
    "pycuda": _ON_THE_HOST,
    "cuda": _ON_THE_HOST,
    "mamba_ssm": _ON_THE_HOST,
    "causal_conv1d": _ON_THE_HOST,
    "torch_tensorrt": "run the model as it is",
    "tensorrt": "run the model as it is",
    "nvidia.dali": "use torch.utils.data.DataLoader",
}
"""Libraries of CUDA kernels that are refused by name, and what to do instead."""
# Libraries that need a GPU, as prefixes of the names of shared libraries.
_OF_CUDA = ("libcud", "libcublas", "libcufft", "libcurand", "libcusolver", "libcusparse", "libnv", "libnccl",
            "libtorch_cuda", "libc10_cuda", "libtorch_hip", "libc10_hip")  # fmt: skip
OF_TORCH = ("functorch._C",)
"""Compiled parts of torch before 2.7 that are linked with its CUDA part but use nothing of it: stubs suffice."""
_PT_LOAD, _PT_DYNAMIC, _DT_NEEDED, _DT_STRTAB = 1, 2, 1, 5
_AFTER: dict[str, Callable[[ModuleType], None]] = {
    "bitsandbytes.cextension": refusals.bitsandbytes,
    "safetensors.torch": host.safetensors,
    "torch._dynamo.config": compiled.settings,
    "torch._dynamo.eval_frame": compiled.compiler,
    "torch._dynamo.trace_rules": compiled.trace_rules,
    "torch._functorch.config": inductor.autograd_settings,
    "torch._higher_order_ops.flex_attention": flexible_attention.install,
    "torch._inductor.async_compile": inductor.kernels,
    "torch._inductor.codecache": inductor.code,
    "torch._inductor.compile_fx": inductor.compiler,
    "torch._inductor.config": inductor.settings,
    "torch._inductor.runtime.benchmarking": inductor.benchmarks,
    "torch._inductor.runtime.triton_helpers": inductor.helpers,
    "torch.utils.cpp_extension": refusals.extensions,
    "torch.utils._triton": compiled.has_triton,
    "transformers.modeling_utils": refusals.flash_attention,
    "triton": interpreted.install,
    "triton.experimental.gluon._runtime": interpreted.gluon,
    "triton.language.extra.libdevice": interpreted.libdevice,
}


def install() -> None:
    """Install the first and the last of the module finders."""
    for name, change in _AFTER.items():
        if (module := sys.modules.get(name)) is not None:
            change(module)
    absent.hide()
    sys.meta_path.insert(0, _First())
    sys.meta_path.append(_Last())
    loader: Any = ExtensionFileLoader
    plain = loader.create_module

    def create_module(self: ExtensionFileLoader, spec: ModuleSpec) -> ModuleType:
        names = needed(spec.origin or "") if spec.name not in OF_TORCH else []
        library = next((name for name in names if name.startswith(_OF_CUDA)), "")
        try:
            return plain(self, spec) if not library else _refuse(spec, library)  # type: ignore[no-any-return]
        except ImportError as error:
            missing = str(error).split(":")[0]  # missing for a library that this one is linked with
            if library or not missing.startswith(_OF_CUDA):
                raise
            _refuse(spec, missing, error)

    loader.create_module = create_module


def _refuse(spec: ModuleSpec, missing: str, error: ImportError | None = None) -> NoReturn:
    top = spec.name.split(".")[0]
    sentence = _sentence(f"'{spec.name}' is compiled for CUDA (it asks for {missing}) and", top)
    raise ImportError(sentence, name=spec.name, path=spec.origin) from error


def needed(file: str) -> list[str]:
    """Return the libraries that a 64-bit shared library is linked with (elf(5), DT_NEEDED); empty for other files."""
    try:
        with open(file, "rb") as read, mmap.mmap(read.fileno(), 0, access=mmap.ACCESS_READ) as data:
            start, size, count = (*struct.unpack_from("<Q", data, 32), *struct.unpack_from("<HH", data, 54))
            parts = [struct.unpack_from("<IIQQQQQQ", data, start + size * number) for number in range(count)]
            loaded = [part for part in parts if part[0] == _PT_LOAD]
            _, _, at, _, _, length, *_ = next(part for part in parts if part[0] == _PT_DYNAMIC)
            entries = [struct.unpack_from("<QQ", data, at + 16 * number) for number in range(length // 16)]
            strings = next(value for tag, value in entries if tag == _DT_STRTAB)
            begin = next(strings - part[3] + part[2] for part in loaded if part[3] <= strings < part[3] + part[5])
            names = [begin + value for tag, value in entries if tag == _DT_NEEDED]
            return [data[offset : data.find(b"\0", offset)].decode() for offset in names]
    except (OSError, ValueError, StopIteration, struct.error):
        return []


def _sentence(subject: str, library: str) -> str:
    return f"streamrace: {subject} cannot run on a simulated GPU: {INSTEAD.get(library, _ON_THE_HOST)}"


class _First(importlib.abc.MetaPathFinder):
    """A finder that changes a few modules after they are loaded as usual."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name == "triton" and presence.usable():
            presence.interpret()
        elif presence.is_of(name) and not presence.usable():
            return absent.spec(name)
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
    """A finder for modules that all other finders have missed."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> None:
        if name in INSTEAD and _imported():
            raise ModuleNotFoundError(
                f"No module named '{name}'. " + _sentence(f"'{name}' is a library of CUDA kernels and", name), name=name
            )


def _imported() -> bool:
    """Check whether this is an import, and not a mere search for the module (``importlib.util.find_spec``)."""
    frame: Any = sys._getframe(2)
    while frame is not None and frame.f_globals.get("__name__") == "importlib._bootstrap":
        if frame.f_code.co_name == "_find_and_load":
            return True
        frame = frame.f_back
    return False
