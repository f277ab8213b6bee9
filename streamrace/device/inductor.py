"""Has inductor, the compiler behind ``torch.compile``, generate code that runs on the simulated GPU.

Its Triton kernels run by Triton's interpreter (:mod:`streamrace.device.triton`), each in the first of the
configurations that inductor has for it, as virtual time cannot tell them apart. Its C++ kernels, for tensors on the
host, are compiled, and what they access of pinned memory is reported. Each process generates all its code anew: from a
cache it could get what other settings, or a pass that the program has changed since, had generated.
"""

from __future__ import annotations

import functools
import os
import re
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import ModuleType
from typing import Any, ClassVar

import torch

from streamrace.device import compiled, graph_lines
from streamrace.device.options import INDUCTOR
from streamrace.device.refusals import refusal

_SIGNATURE = re.compile(r"void\s+kernel\([^)]*\)")
_FOLDER = "TORCHINDUCTOR_CACHE_DIR"
_CACHES = ("fx_graph_cache", "fx_graph_remote_cache", "autotune_local_cache", "autotune_remote_cache",
           "bundled_autotune_remote_cache")  # fmt: skip
_BENCHMARKS = ("benchmark_fusion", "benchmark_epilogue_fusion", "benchmark_combo_kernel")
_SECONDS = 1.0  # of each choice that is benchmarked

_refuse_graphs = refusal(
    "torch.compile's graph trees (mode='reduce-overhead' or 'max-autotune')",
    "say --compile aot_eager, leave the mode out, or capture with torch.cuda.graph",
)
_refuse_wrapper = refusal("inductor's C++ wrapper (cpp_wrapper, AOTInductor)", "leave it off: the Python wrapper runs")


@contextmanager
def code_folder() -> Iterator[None]:
    """Have this process and its forks write generated code into a folder that exists as long as the ``with`` block.

    A folder that the user named (``TORCHINDUCTOR_CACHE_DIR``) is taken, and stays.
    """
    if _FOLDER in os.environ:
        yield
        return
    with tempfile.TemporaryDirectory(prefix="streamrace-inductor-", ignore_cleanup_errors=True) as folder:
        os.environ[_FOLDER] = folder
        try:
            yield
        finally:
            os.environ.pop(_FOLDER, None)


# -- in modules of torch that are imported later, see streamrace.device.imports ----------------------------------


def settings(module: ModuleType) -> None:
    """Change ``torch._inductor.config``: no caches, no compiling processes, no fusion that a benchmark decides."""
    compiled.set_options(module, (*_CACHES, *_BENCHMARKS), False)
    compiled.set_options(module, ("compile_threads",), 1)
    guards: Any = torch._C._dynamo.guards
    setattr(guards, "_empty_strided_cuda", _empty_strided)  # noqa: B010 # a CPU build has none
    guards.assert_size_stride = functools.partial(_check_layout, guards.assert_size_stride)


def autograd_settings(module: ModuleType) -> None:
    """Change ``torch._functorch.config``: no caches."""
    compiled.set_options(module, ("enable_autograd_cache", "enable_remote_autograd_cache"), False)


def helpers(module: ModuleType) -> None:
    """Keep ``torch._inductor.runtime.triton_helpers`` from another driver than the simulated GPU's."""
    setattr(module, "set_driver_to_gpu", lambda: None)  # noqa: B010


def compiler(module: ModuleType) -> None:
    """Change ``torch._inductor.compile_fx``: refuse what the simulated GPU cannot run before it is generated."""
    target: Any = module
    plain = target.compile_fx

    @functools.wraps(plain)
    def compile_fx(*arguments: Any, **options: Any) -> Any:
        config: Any = target.config
        if config.triton.cudagraphs:
            _refuse_graphs()
        if config.cpp_wrapper:
            _refuse_wrapper()
        return plain(*arguments, **options)

    target.compile_fx = compile_fx


def benchmarks(module: ModuleType) -> None:
    """Change ``torch._inductor.runtime.benchmarking``: all choices take equally long, so the first one is taken."""
    for name in ("TritonBenchmarker", "InductorBenchmarker"):
        if (kind := getattr(module, name, None)) is not None:
            setattr(kind, "benchmark_gpu", lambda *_, **__: _SECONDS)  # noqa: B010


def code(module: ModuleType) -> None:
    """Change ``torch._inductor.codecache``: remember from which lines of the program a module was generated."""
    from torch._inductor.virtualized import V

    target: Any = module
    plain = target.PyCodeCache.load_by_key_path

    @functools.wraps(plain)
    def load(key: str, path: str, linemap: Sequence[tuple[int, str]] | None = None, *more: Any, **options: Any) -> Any:
        loaded = plain(key, path, linemap, *more, **options)
        if linemap is not None:
            compiled.note(INDUCTOR)
            graph_lines.remember_module(path, linemap, backward=bool(getattr(V.graph, "is_backward", False)))
        return loaded

    target.PyCodeCache.load_by_key_path = load


def kernels(module: ModuleType) -> None:
    """Change ``torch._inductor.async_compile``: name files of Triton kernels, report what C++ kernels access."""
    kind: Any = getattr(module, "AsyncCompile")  # noqa: B009
    triton, binding = kind.triton, kind.cpp_pybinding

    @functools.wraps(triton)
    def named(self: Any, kernel_name: str, *arguments: Any, **options: Any) -> Any:
        kernel = triton(self, kernel_name, *arguments, **options)
        graph_lines.name(kernel.fn.fn.__code__.co_filename, f"inductor/{kernel_name}.py")
        return kernel

    @functools.wraps(binding)
    def reported(self: Any, argtypes: Sequence[str], source_code: str) -> Callable[..., Any]:
        return _HostKernel(binding(self, argtypes, source_code), source_code)

    kind.triton, kind.cpp_pybinding = named, reported


class _HostKernel:
    """A C++ kernel, whose call is an operator that reads and writes tensors: so accesses to pinned memory are seen."""

    _running: ClassVar[list[Callable[[], Any]]] = []

    def __init__(self, kernel: Callable[..., Any], source_code: str) -> None:
        self._kernel = kernel
        self._names = re.findall(r"(\w+)(?=[,)])", _SIGNATURE.findall(source_code)[-1])

    def __call__(self, *arguments: Any) -> None:
        of = [(name, one) for name, one in zip(self._names, arguments, strict=True) if isinstance(one, torch.Tensor)]
        given = [one for name, one in of if name.startswith("in_")]
        made = [one for name, one in of if name.startswith(("in_out_", "out_"))]
        self._running.append(functools.partial(self._kernel, *arguments))
        _operator()(given, made)

    @classmethod
    def run(cls, *_: Any) -> None:
        cls._running.pop()()


@functools.cache
def _operator() -> Callable[[Sequence[torch.Tensor], Sequence[torch.Tensor]], None]:
    library = _libraries.setdefault("inductor", torch.library.Library("inductor", "FRAGMENT"))
    library.define("cpp_kernel(Tensor[] given, Tensor(a!)[] made) -> ()")
    library.impl("cpp_kernel", _HostKernel.run, "CompositeExplicitAutograd")
    return torch.ops.inductor.cpp_kernel.default


_libraries: dict[str, torch.library.Library] = {}  # kept alive


def _empty_strided(size: Sequence[int], stride: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    return torch.empty_strided(size, stride, dtype=dtype, device="cuda")


def _check_layout(plain: Callable[..., Any], tensor: Any, size: Any, stride: Any, op: str | None = None) -> None:
    """Check the layout that generated code expects. Some operators' results have another one on the CPU."""
    try:
        plain(tensor, size, stride, *([op] if op else []))
    except AssertionError:
        if op and tensor.is_cuda:
            refusal(f"the layout that the result of {op} has on a GPU", "say --compile aot_eager, which needs none")()
        raise
