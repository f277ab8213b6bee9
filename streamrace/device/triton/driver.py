"""Stands for the driver of a GPU that Triton asks for properties, the current stream and a benchmark."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from streamrace.device.cuda import DeviceProperties

SECONDS = [1.0, 1.0, 1.0]
"""The result of a benchmark: the median and two quantiles. All configurations of a kernel take equally long."""


class Utils:
    """The part of the driver that knows the GPU."""

    def get_device_properties(self, _: int) -> dict[str, int]:
        gpu = DeviceProperties
        return {
            "max_shared_mem": gpu.shared_memory_per_block_optin,
            "max_num_regs": gpu.regs_per_multiprocessor,
            "multiprocessor_count": gpu.multi_processor_count,
            "warpSize": gpu.warp_size,
            "sm_clock_rate": gpu.clock_rate,
            "mem_clock_rate": 1_593_000,
            "mem_bus_width": 5120,
        }


class Driver:
    """The driver of the simulated GPU."""

    utils = Utils()

    def get_current_target(self) -> Any:
        from triton.backends.compiler import GPUTarget

        gpu = DeviceProperties
        return GPUTarget("cuda", 10 * gpu.major + gpu.minor, gpu.warp_size)

    def get_active_torch_device(self) -> torch.device:
        return torch.device("cuda", torch.cuda.current_device())

    def get_device_interface(self) -> Any:
        return torch.cuda

    def get_current_device(self) -> int:
        return torch.cuda.current_device()

    def set_current_device(self, device: int) -> None:
        torch.cuda.set_device(device)

    def get_current_stream(self, device: int | None = None) -> int:
        return torch.cuda.current_stream(device).stream_id

    def get_benchmarker(self) -> Callable[..., list[float]]:
        """Return a function that runs nothing: virtual time says nothing of a kernel's configuration."""
        return lambda *_, **__: list(SECONDS)

    def get_empty_cache_for_benchmark(self) -> torch.Tensor:
        return torch.empty(1 << 16, dtype=torch.int32, device="cuda")

    def clear_cache(self, cache: torch.Tensor) -> None:
        cache.zero_()
