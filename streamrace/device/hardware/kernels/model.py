"""The model: a kernel starts, and then takes the longer of its arithmetic and its bytes."""

from __future__ import annotations

from streamrace.device.hardware.kernels import attention, gemm, memory
from streamrace.device.hardware.kernels.gpu import Gpu, Machine
from streamrace.device.hardware.kernels.signature import Signature


class Kernels:
    """What kernels take on ``gpu``."""

    def __init__(self, gpu: Gpu) -> None:
        self.gpu = gpu

    def nanoseconds(self, one: Signature) -> float:
        """A kernel by itself, from its start to its end."""
        return self.gpu.floor_ns + max(self.arithmetic(one), self.bytes_alone(one))

    def bytes_alone(self, one: Signature) -> float:
        """Nanoseconds of its bytes."""
        return memory.nanoseconds(one, self.gpu)

    def arithmetic(self, one: Signature) -> float:
        """Nanoseconds of its products; 0 where there are none."""
        attended = attention.nanoseconds(one, self.gpu)
        if attended is not None:
            return attended
        return sum(gemm.nanoseconds(product, self.gpu) for product in gemm.products(one))

    @staticmethod
    def of(profile: Machine) -> Kernels | None:
        """Those of a profile that names its GPU."""
        return None if profile.gpu is None else Kernels(Gpu.of(profile))
