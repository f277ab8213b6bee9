"""Simulates the interface of ``torch.cuda``.

torch's own Python code is unchanged. It calls functions of ``torch._C`` that a CPU build lacks: this module supplies
them, on top of the guard that the C++ part registers. Functions that need a real GPU are refused by name.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch

from streamrace.device import memory, streams, work
from streamrace.device.build import cuda_version, torch_folder
from streamrace.device.library import functions
from streamrace.device.overrides import overridden
from streamrace.device.refusals import refusal
from streamrace.device.sanitizer import unseen

_CUDA = 1  # c10::DeviceType
VERSION = cuda_version()
_ERRORS = {
    0: "no error", 1: "invalid argument", 2: "out of memory", 100: "no CUDA-capable device is detected",
    101: "invalid device ordinal", 600: "device not ready", 700: "an illegal memory access was encountered",
}  # fmt: skip


class DeviceProperties:
    """The result of ``torch.cuda.get_device_properties``, with the numbers of an A100 of 80 GiB."""

    name = "Simulated GPU"
    major, minor = 8, 0
    total_memory = memory.total()
    multi_processor_count = 108
    is_integrated = is_multi_gpu_board = 0
    max_threads_per_multi_processor = 2048
    warp_size = 32
    regs_per_multiprocessor = 65536
    shared_memory_per_block = 49152
    shared_memory_per_block_optin = 166912
    shared_memory_per_multiprocessor = 167936
    L2_cache_size = 40 << 20
    clock_rate = 1_410_000  # kHz
    cycles_per_ns = clock_rate / 1e6
    gcnArchName = name  # noqa: N815 - torch's word
    uuid = "simulated"

    def __repr__(self) -> str:
        return f"_CudaDeviceProperties(name='{self.name}', major=8, minor=0, total_memory={self.total_memory >> 20}MB)"


def _stream_data(stream: torch.Stream) -> tuple[int, int, int]:
    return stream.stream_id, stream.device_index, _CUDA


def _set_stream(stream_id: int, device_index: int, device_type: int) -> None:
    torch._C._accelerator_setStream(
        torch.Stream(stream_id=stream_id, device_index=device_index, device_type=device_type)
    )


def _check(index: int) -> None:
    """Raise the error of CUDA if there is no such device."""
    if index >= 0:
        with torch.cuda.device(index):
            pass


def _exchange_device(index: int) -> int:
    before: int = torch._C._accelerator_getDeviceIndex()
    if index >= 0:
        torch._C._accelerator_setDeviceIndex(index)
    return before if index >= 0 else -1


def _maybe_exchange_device(index: int) -> int:
    """Do the same, as there is no context to create. Separate because torch._dynamo distinguishes the two functions."""
    return _exchange_device(index)


def _synchronize() -> None:
    if not overridden("device.synchronize", torch.cuda.current_stream()):
        torch._C._accelerator_synchronizeDevice(torch._C._accelerator_getDeviceIndex())


def _sleep(cycles: int) -> None:
    """Launch a kernel that does nothing for ``cycles`` cycles of the device's clock."""
    work.launch(
        "torch.cuda._sleep",
        stream=functions().current_stream(),
        duration=round(cycles / DeviceProperties.cycles_per_ns),
    )


class _Runtime(ModuleType):
    """The functions of ``torch.cuda.cudart()`` that programs call."""

    class cudaError(int):  # noqa: N801 - CUDA's name
        success = 0

    def __init__(self) -> None:
        super().__init__("torch._C._cudart")

    def cudaMemGetInfo(self, index: int) -> tuple[int, int]:  # noqa: N802
        _check(index)
        free, total = torch._C._accelerator_getMemoryInfo(index)
        return free, total

    def cudaProfilerStart(self) -> int:  # noqa: N802
        return 0

    cudaProfilerStop = cudaProfilerStart  # noqa: N815

    def cudaDeviceSynchronize(self) -> int:  # noqa: N802
        torch.cuda.synchronize()
        return 0

    def cudaGetErrorString(self, code: int) -> str:  # noqa: N802
        return _ERRORS.get(code, "unrecognized error code")

    cudaStreamCreate = cudaStreamDestroy = staticmethod(  # noqa: N815
        refusal("a stream made by a call of the CUDA runtime", "use torch.cuda.Stream()")
    )

    def cudaHostRegister(self, address: int, nbytes: int, _: int) -> cudaError:  # noqa: N802
        with unseen():
            torch.empty(0, pin_memory=True)  # before the first use of the GPU, torch reports no memory as pinned
        return self.cudaError(functions().host_register(address, nbytes))

    def cudaHostUnregister(self, address: int) -> cudaError:  # noqa: N802
        return self.cudaError(functions().host_unregister(address))


class _Nvtx(ModuleType):
    """Ranges of a profiler that does not exist: every function does nothing."""

    def __init__(self) -> None:
        super().__init__("torch._C._nvtx")

    def __getattr__(self, name: str) -> Callable[..., int]:
        return lambda *_, **__: 0


def _begin() -> None:
    """Begin the use of the device: called by ``torch.cuda.init``, after which torch draws its seeds."""
    cuda: Any = torch.cuda
    with unseen():  # a mode that asked about the device here would wait forever
        cuda.default_generators = tuple(map(torch.ops.simgpu.default_generator, range(cuda.device_count())))


def _initialised(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a function so that it begins the use of the device, as CUDA's does."""

    def call(*arguments: Any) -> Any:
        torch.cuda._lazy_init()
        return function(*arguments)

    return call


def _setting(get: str, put: str, value: object) -> dict[str, Any]:
    """Return getter and setter of a setting of CUDA's libraries, which is stored and has no effect."""
    stored = [value]

    def change(new: object) -> None:
        stored[0] = new

    return {get: lambda: stored[0], put: change}


def _given(count: int) -> dict[str, Any]:
    """Return the functions of ``torch._C`` that a CUDA build has, by name."""
    c: Any = torch._C
    return {
        "_cuda_getDeviceCount": lambda: count,
        "_cuda_init": _begin,
        "_cuda_isInBadFork": lambda: False,
        "_cuda_getDevice": _initialised(c._accelerator_getDeviceIndex),
        "_cuda_setDevice": _initialised(c._accelerator_setDeviceIndex),
        "_cuda_exchangeDevice": _exchange_device,
        "_cuda_maybeExchangeDevice": _maybe_exchange_device,
        "_cuda_getCurrentStream": lambda index: _stream_data(c._accelerator_getStream(index)),
        "_cuda_getCurrentRawStream": lambda index: c._accelerator_getStream(index).stream_id,
        "_cuda_getDefaultStream": lambda index: (functions().default_stream(index), index, _CUDA),
        "_cuda_setStream": _set_stream,
        "_cuda_synchronize": _synchronize,
        "_cuda_canDeviceAccessPeer": lambda device, peer: True,
        "_cuda_ipc_collect": lambda: None,
        "_cuda_getArchFlags": lambda: "sm_80",
        "_cuda_sleep": _sleep,
        **memory.torch_functions(),
        "_cuda_hostMemoryStats": refusal("a count of pinned memory", "the trace has every block of it (--trace)"),
        "_cuda_resetPeakHostMemoryStats": lambda: None,
        "_cuda_resetAccumulatedHostMemoryStats": lambda: None,
        "_host_emptyCache": lambda: None,
        "_cuda_cudaCachingAllocator_is_enabled": lambda: True,
        "_cuda_getAllocatorBackend": lambda: "native",
        "_cuda_set_sync_debug_mode": lambda mode: None,
        "_cuda_get_sync_debug_mode": lambda: 0,
        "_cuda_hasPrimaryContext": lambda index: True,
        "_cuda_getCompiledVersion": lambda: int(VERSION.replace(".", "0")) * 10,
        "_cuda_clearCublasWorkspaces": lambda: None,
        "_cuda_resetCublasWorkspaceSize": lambda: None,
        "_cuda_resetCublasLtWorkspaceSize": lambda: None,
        **_setting("_cuda_get_cudnn_benchmark_limit", "_cuda_set_cudnn_benchmark_limit", 10),
        **_setting("_cuda_get_conv_benchmark_empty_cache", "_cudnn_set_conv_benchmark_empty_cache", True),
        "_cudart": _Runtime(),
        "_nvtx": _Nvtx(),
    }


def see(count: int) -> None:
    """Let the process see ``count`` devices. It uses the first until it calls ``torch.cuda.set_device``."""
    cuda: Any = torch.cuda
    c: Any = torch._C
    functions().devices(count, 0, int(os.environ.get("RANK", "0")))
    c._cuda_getDeviceCount = cuda.device_count = lambda: count
    cuda.is_available = lambda: count > 0
    if cuda._initialized:
        _begin()


def _current_stream(device: Any = None) -> torch.Stream:
    """Return the current stream, in a third of torch's time: DeepSpeed asks once per shard of a parameter."""
    c: Any = torch._C
    if device is None:
        index = c._accelerator_getDeviceIndex()
    elif (index := torch.cuda._utils._get_device_index(device, True)) >= torch.cuda.device_count():
        raise RuntimeError(f"Device index value {index} is out of index range [0, {torch.cuda.device_count()})")
    number = c._accelerator_getStream(index).stream_id
    return torch.Stream.__new__(streams.Stream, stream_id=number, device_index=index, device_type=_CUDA)


def install(*, count: int = 1) -> None:
    """Install the simulated ``torch.cuda``. Called once, right after torch is imported."""
    cuda: Any = torch.cuda
    c: Any = torch._C
    for name, value in _given(count).items():
        setattr(c, name, value)
    c._has_cuda = True
    cuda._cudart = c._cudart
    cuda._exchange_device, cuda._maybe_exchange_device = _exchange_device, _maybe_exchange_device
    cuda._is_in_bad_fork = c._cuda_isInBadFork
    properties = DeviceProperties()
    cuda._get_device_properties = lambda index: properties
    cuda._CudaDeviceProperties = DeviceProperties
    cuda.is_available = lambda: count > 0
    cuda.device_count = lambda: count
    cuda.is_bf16_supported = lambda including_emulation=True: True
    for module in (cuda, cuda.streams):
        module.Stream, module.Event, module.ExternalStream = streams.Stream, streams.Event, streams.ExternalStream
    streams.install()
    cuda.current_stream = _current_stream
    torch.version.cuda = VERSION
    _profiler()
    cuda.nvtx._nvtx = c._nvtx
    cuda.mem_get_info = cuda.memory.mem_get_info = lambda device=None: c._cudart.cudaMemGetInfo(
        cuda._utils._get_device_index(device, optional=True)
    )
    os.register_at_fork(after_in_child=_forked)


def _profiler() -> None:
    """Keep CUPTI out of torch's profiler; let ``emit_nvtx`` synchronise as in CUDA builds, but record no ranges."""
    profiler: Any = torch.autograd.profiler
    supported = profiler._supported_activities
    # A build made from a CUDA wheel has CUPTI's calls but not CUPTI: the device's own stubs serve instead.
    profiler._supported_activities = lambda: supported() - {profiler.ProfilerActivity.CUDA}
    nvtx: Any = profiler.emit_nvtx

    def enter(self: Any) -> Any:
        if self.enabled and self.entered:
            raise RuntimeError("NVTX annotation context manager is not reentrant")
        if self.enabled:
            self.entered = True
            torch.cuda.synchronize()
        return self

    def leave(self: Any, *_: object) -> bool:
        if self.enabled:
            torch.cuda.synchronize()
        return False

    nvtx.__enter__, nvtx.__exit__ = enter, leave


def _forked() -> None:
    """Act as CUDA after a fork: a child of a process that used the GPU cannot use it, other children can."""
    cuda: Any = torch.cuda
    if functions().used():
        cuda._is_in_bad_fork = lambda: True
        cuda._initialized = False
        _ask_again()
    # torch re-creates its thread pool on the first request after a fork. Two threads that request it at once, as
    # those of autograd's engine (one per device) do, may abort: "Invalid thread pool!" (pytorch issue 178535; seen
    # under load). So the pool is requested here, while this is the only thread.
    torch.set_num_threads(torch.get_num_threads())


def begin_with(function: Callable[[], None]) -> None:
    """Make the next use of the device count as the first, which begins by calling ``function``."""
    cuda: Any = torch.cuda
    c: Any = torch._C
    c._cuda_init = function
    cuda._initialized = False
    _ask_again()


def _ask_again() -> None:
    """Reset the flag of torch's compiled part that the device is initialised; the flag survives a fork."""
    compiled = ctypes.CDLL(str(torch_folder() / "lib" / "libtorch_python.so"))
    compiled._ZN5torch5utils24set_requires_device_initEN3c1010DeviceTypeEb(ctypes.c_int8(_CUDA), ctypes.c_bool(True))


def take_over() -> None:
    """Let this fork continue with the device of its parent process, which must have no work left on it.

    No GPU can do this. Used to run a test repeatedly from the same state (the pytest plugin).
    """
    cuda: Any = torch.cuda
    cuda._is_in_bad_fork = torch._C._cuda_isInBadFork  # type: ignore[attr-defined]
    cuda._initialized = True
    _begin()
