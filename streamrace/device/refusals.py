"""Refuses calls that cannot be simulated, when they are made: with their name, and with an alternative.

Refusals during the import of a library are in :mod:`streamrace.device.imports`. ``torch.compile`` is not refused
(:mod:`streamrace.device.compiled`).
"""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable
from types import ModuleType
from typing import Any, NoReturn

import torch


def refusal(subject: str, instead: str) -> Callable[..., NoReturn]:
    """Return a function that raises an error: what cannot be simulated, and what to do instead."""

    def refuse(*_: Any, **__: Any) -> NoReturn:
        raise RuntimeError(f"streamrace: {subject} cannot be simulated: {instead}")

    return refuse


_TREES = ("the memory of torch.compile's graph trees (mode='reduce-overhead')", "leave the mode out")
_POOL = ("a memory pool of one's own (MemPool)", "allocate as usual")
_ALLOCATOR = ("another allocator", "use torch's own, which is simulated")
_SNAPSHOT = ("a snapshot of the allocator", "the trace has every allocation and free (--trace)")
_POINTER = ("memory that torch does not know (caching_allocator_alloc)", "use torch.empty")
_FILES = ("GPUDirect Storage", "read the file on the host and copy it to the device")
_TUNING = ("the choice among CUDA's kernels (TunableOp)", "leave it off: the CPU's kernels give the values")
_COMMUNICATOR = ("torch.cuda.nccl (one process with many GPUs)", "use torch.distributed, one process for each GPU")
_COMPILED = ("a kernel compiled at run time (NVRTC, jiterator)", "compute it with torch's own operators")
_WORKSPACE = ("a workspace of cuBLAS", "leave its size out: the CPU's kernels give the values")
_HANDLE = ("a handle of cuBLAS or cuSOLVER", "call torch's own operators")
_IPC = (
    "a CUDA tensor in another process (CUDA IPC)",
    "send tensor.cpu(); between ranks use torch.distributed; let a DataLoader's workers return tensors of the host",
)
_SENSORS = ("what NVIDIA's management library measures of a GPU", "torch.cuda.memory_allocated is simulated")
STREAM_OF_A_LIBRARY = ("a stream of another library (ExternalStream)", "use torch.cuda.Stream()")
_CONTEXT = ("a green context", "use torch.cuda.Stream()")

FUNCTIONS: dict[str, tuple[str, str]] = {
    "_cuda_beginAllocateToPool": _POOL,
    "_cuda_beginAllocateCurrentThreadToPool": _POOL,
    "_cuda_endAllocateToPool": _POOL,
    "_cuda_releasePool": _POOL,
    "_cuda_beginAllocateCurrentStreamToPool": _POOL,
    "_cuda_checkPoolLiveAllocations": _POOL,
    "_cuda_getCheckpointState": _POOL,
    "_cuda_setCheckpointPoolState": _POOL,
    "_cuda_CUDAAllocator_AllocatorState": _TREES,
    "_cuda_customAllocator": _ALLOCATOR,
    "_cuda_changeCurrentAllocator": _ALLOCATOR,
    "_cuda_getAllocator": _ALLOCATOR,
    "_cuda_cudaHostAllocator": _ALLOCATOR,
    "_cuda_cudaCachingAllocator_enable": _ALLOCATOR,
    "_cuda_cudaCachingAllocator_raw_alloc": _POINTER,
    "_cuda_cudaCachingAllocator_raw_delete": _POINTER,
    "_cuda_memorySnapshot": _SNAPSHOT,
    "_cuda_record_memory_history": _SNAPSHOT,
    "_cuda_record_memory_history_legacy": _SNAPSHOT,
    "_cuda_allocationTraceback": _SNAPSHOT,
    "_cuda_setMemoryMetadata": _SNAPSHOT,
    "_cuda_getMemoryMetadata": _SNAPSHOT,
    "_cuda_getStreamFromExternal": STREAM_OF_A_LIBRARY,
    "_cuda_getCurrentBlasHandle": _HANDLE,
    "_cuda_getCurrentSolverHandle": _HANDLE,
    **{f"_cuda_{action}Cublas{lt}WorkspaceSize": _WORKSPACE for action in ("get", "set") for lt in ("", "Lt")},
    "_cuda_jiterator_compile_and_launch_kernel": _COMPILED,
    **{f"_gds_{action}_{of}": _FILES for action in ("register", "deregister") for of in ("handle", "buffer")},
    **{f"_gds_{action}_storage": _FILES for action in ("load", "save")},
    **{
        f"_cuda_tunableop_{name}": _TUNING
        for name in (
            "enable", "tuning_enable", "set_rotating_buffer_size", "set_numerical_check_tolerances", "read_file",
            "set_max_tuning_iterations", "set_max_tuning_duration", "set_filename", "get_validators", "get_results",
            "get_rotation_buffer_size", "get_rotating_buffer_size",
            "get_max_tuning_iterations", "get_max_tuning_duration", "get_filename",
        )
    },
    "_cuda_record_untuned_enable": _TUNING,
    **{
        f"_nccl_{name}": _COMMUNICATOR
        for name in ("unique_id", "init_rank", "all_reduce", "reduce", "broadcast", "all_gather", "reduce_scatter")
    },
}  # fmt: skip
"""Functions of ``torch._C`` that a build with CUDA has: what each asks for, and what to do instead."""
_OFF = ("_cuda_tunableop_is_enabled", "_cuda_tunableop_tuning_is_enabled", "_cuda_record_untuned_is_enabled",
        "_cuda_isHistoryEnabled")  # fmt: skip


def install() -> None:
    """Install the refusals in place of functions that a CUDA build has."""
    c: Any = torch._C
    cuda: Any = torch.cuda
    for name, sentence in FUNCTIONS.items():
        setattr(c, name, refusal(*sentence))
    for name in _OFF:
        setattr(c, name, lambda: False)
    cuda.memory.MemPool.__init__ = refusal(*_POOL)
    cuda.memory.MemPool.__new__ = staticmethod(refusal(*_POOL))
    cuda.memory.CUDAPluggableAllocator.__init__ = refusal(*_ALLOCATOR)
    cuda._compile_kernel = refusal(*_COMPILED)
    cuda._get_pynvml_handler = refusal(*_SENSORS)
    for name in ("device_memory_used", "memory_usage", "temperature", "power_draw", "clock_rate", "utilization"):
        setattr(cuda, name, refusal(*_SENSORS))
    if hasattr(cuda, "green_contexts"):  # since 2.10
        cuda.green_contexts.GreenContext.create = staticmethod(refusal(*_CONTEXT))
    _between_processes()
    _other_libraries()
    c._jit_override_can_fuse_on_gpu(False)  # TorchScript would create kernels for the GPU: it also runs one by one


def _between_processes() -> None:
    storage: Any = torch.UntypedStorage
    plain = storage._share_cuda_

    def share(self: torch.UntypedStorage, *arguments: Any) -> Any:
        return refusal(*_IPC)() if self.device.type == "cuda" else plain(self, *arguments)

    storage._share_cuda_ = share
    storage._new_shared_cuda = refusal(*_IPC)


def _other_libraries() -> None:
    """Refuse ``__cuda_array_interface__``: cupy or numba would use the memory past the simulated clock."""
    tensor: Any = torch.Tensor
    plain = tensor.__cuda_array_interface__

    def interface(self: torch.Tensor) -> Any:
        if self.device.type != "cuda":
            return plain.__get__(self)
        raise AttributeError(
            "streamrace: __cuda_array_interface__ cannot share the simulated GPU's memory with other libraries, whose "
            "kernels do not run on it: share a copy on the host (tensor.cpu())"
        )

    tensor.__cuda_array_interface__ = property(interface)


# -- in modules that are imported later than the device, see streamrace.device.imports --------------------------


def extensions(module: ModuleType) -> None:
    """Refuse CUDA sources in ``torch.utils.cpp_extension``. Sources in C++ alone are compiled as usual."""
    cpp: Any = module
    instead = (
        "it needs CUDA's compiler and a GPU: install the library without its CUDA kernels, or use torch's own operators"
    )

    def guard(name: str) -> None:
        plain = getattr(cpp, name)
        signature = inspect.signature(plain)

        @functools.wraps(plain)
        def call(*arguments: Any, **keywords: Any) -> Any:
            bound = signature.bind(*arguments, **keywords).arguments  # by name, also if passed by position
            sources = bound.get("sources", ())
            files = [sources] if isinstance(sources, str) else list(sources)
            if bound.get("with_cuda") or bound.get("cuda_sources") or any(map(cpp._is_cuda_file, files)):
                refusal(f"the CUDA extension '{bound['name']}' (torch.utils.cpp_extension.{name})", instead)()
            return plain(*arguments, **keywords)

        setattr(cpp, name, call)

    cpp.CUDA_HOME = None  # nothing is compiled for this GPU, even if a CUDA compiler is installed
    guard("load")
    guard("load_inline")
    cpp.CUDAExtension = lambda name, *_, **__: refusal(f"the CUDA extension '{name}' (CUDAExtension)", instead)()


def bitsandbytes(module: ModuleType) -> None:
    """Refuse by name the kernels for which ``bitsandbytes.cextension`` would only ask for another build."""
    library: Any = module
    for name in ("BNBNativeLibrary", "ErrorHandlerMockBNBNativeLibrary"):
        kind = getattr(library, name, None)
        if kind is not None and "__getattr__" in vars(kind):
            kind.__getattr__ = _found(kind.__getattr__)


def _found(plain: Callable[[Any, str], Any]) -> Callable[[Any, str], Any]:
    def __getattr__(self: Any, name: str) -> Any:  # noqa: N807
        value = plain(self, name)
        missing = inspect.isfunction(value) and not name.startswith("__")
        return (
            refusal(f"bitsandbytes' kernel '{name}'", "use torch.optim and unquantized weights") if missing else value
        )

    return __getattr__


def flash_attention(module: ModuleType) -> None:
    """Replace the message of ``transformers.modeling_utils`` that a package is missing: installing it does not help."""
    kind: Any = getattr(module, "PreTrainedModel")  # noqa: B009
    for name in [name for name in vars(kind) if re.fullmatch(r"_(check_and_enable_)?flash_attn\w*", name)]:
        stored = vars(kind)[name]
        plain = getattr(stored, "__func__", stored)

        @functools.wraps(plain)
        def check(*arguments: Any, plain: Any = plain, **how: Any) -> Any:
            try:
                return plain(*arguments, **how)
            except ImportError as error:
                raise ImportError(
                    "streamrace: flash_attention_2 is a library of CUDA kernels and cannot run on a simulated GPU: use "
                    "attn_implementation='sdpa'",
                    name="flash_attn",
                ) from error

        setattr(kind, name, classmethod(check) if isinstance(stored, classmethod) else check)


def backend(name: str) -> None:
    """Refuse the backends of torch.distributed that are not simulated. Raise RuntimeError."""
    if name in ("mpi", "ucc", "xccl"):
        refusal(f"the backend '{name}' of torch.distributed", "use 'nccl' for the GPU and 'gloo' for the host")()
