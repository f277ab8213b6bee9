"""Combines the kernel models: a fixed start, then the longer of a kernel's arithmetic and its bytes."""

from __future__ import annotations

from streamrace.device.hardware.kernels import attention, gemm, memory
from streamrace.device.hardware.kernels.gpu import Gpu, Machine
from streamrace.device.hardware.kernels.signature import Signature


class Kernels:
    """Computes the durations of kernels on ``gpu``."""

    def __init__(self, gpu: Gpu) -> None:
        self.gpu = gpu

    def nanoseconds(self, kernel: Signature) -> float:
        """Return the duration of an undisturbed kernel, from start to end, in nanoseconds."""
        return self.gpu.floor_ns + max(self.arithmetic(kernel), self.bytes_alone(kernel))

    def bytes_alone(self, kernel: Signature) -> float:
        """Return the nanoseconds of a kernel's bytes."""
        return memory.nanoseconds(kernel, self.gpu)

    def arithmetic(self, kernel: Signature) -> float:
        """Return the nanoseconds of a kernel's products; 0 without products."""
        attended = attention.nanoseconds(kernel, self.gpu)
        if attended is not None:
            return attended
        return sum(gemm.nanoseconds(product, self.gpu) for product in gemm.products(kernel))

    @staticmethod
    def of(profile: Machine) -> Kernels | None:
        """Return the kernels of a profile's GPU; None if the profile names none."""
        return None if profile.gpu is None else Kernels(Gpu.of(profile))
