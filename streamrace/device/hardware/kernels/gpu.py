"""Describes a GPU to the kernel models: rates, multiprocessors, and the fractions of them that work reaches."""

from __future__ import annotations

from functools import cache
from typing import NamedTuple, Protocol

from streamrace.device.hardware.facts import fact, facts

_HALF = ("float16", "bfloat16")


def _known() -> tuple[str, ...]:
    return tuple(sorted(name.split(".")[1] for name in facts("kernels.") if name.endswith(".sms")))


GPUS = _known()
"""GPUs with kernels known by shape."""


class Machine(Protocol):
    """The part of a profile that describes its GPU: see :class:`streamrace.device.hardware.Profile`."""

    @property
    def gpu(self) -> str | None: ...
    @property
    def kernel_us(self) -> float: ...
    @property
    def tflops(self) -> float: ...
    @property
    def memory_gbytes_per_s(self) -> float: ...
    @property
    def matmul_fraction(self) -> float | None: ...
    @property
    def attention_fraction(self) -> float | None: ...
    @property
    def attention_backward_fraction(self) -> float | None: ...
    @property
    def memory_fraction(self) -> float | None: ...
    @property
    def host_gbytes_per_s(self) -> float | None: ...


class Gpu(NamedTuple):
    """A GPU's rates per nanosecond. ``peaks``: dense floating point operations by type.

    ``matmul``, ``attention``, ``attention_backward``: fractions of the peak; ``memory``: fraction of the memory's rate
    ``bytes_per_ns``. ``host_bytes_per_ns``: between the host's pinned memory and the GPU.
    """

    floor_ns: float
    sms: int
    peaks: tuple[tuple[str, float], ...]
    bytes_per_ns: float
    host_bytes_per_ns: float
    matmul: float
    attention: float
    attention_backward: float
    memory: float

    def peak(self, dtype: str) -> float:
        """Return the peak rate of products in ``dtype``, operations per nanosecond; for unknown types float32's."""
        peaks = dict(self.peaks)
        return peaks.get(dtype, peaks["float32"])

    @classmethod
    def of(cls, profile: Machine) -> Gpu:
        """Return the GPU that a profile names. The profile's own figures take precedence over published ones."""
        name = profile.gpu
        assert name is not None
        figures = {key: fact(f"kernels.{name}.{key}") for key in _FIGURES}
        # Our jobs use bf16 and fp32: bf16 stands for whichever 16-bit type the GPU multiplies fast (a V100: fp16).
        peaks = {
            **dict.fromkeys(_HALF, profile.tflops),
            "tf32": figures["tf32_tflops"],
            "float32": figures["float32_tflops"],
            "float64": figures["float64_tflops"],
        }
        return cls(
            floor_ns=profile.kernel_us * 1000,
            sms=figures["sms"],
            peaks=tuple((dtype, tflops * 1e3) for dtype, tflops in peaks.items()),
            bytes_per_ns=profile.memory_gbytes_per_s,
            host_bytes_per_ns=profile.host_gbytes_per_s or _host_rate(),
            matmul=profile.matmul_fraction or figures["matmul_fraction"],
            attention=profile.attention_fraction or figures["attention_forward"],
            attention_backward=profile.attention_backward_fraction or figures["attention_backward"],
            memory=profile.memory_fraction or figures["memory_fraction"],
        )


_FIGURES = (
    "sms", "tf32_tflops", "float32_tflops", "float64_tflops", "matmul_fraction", "memory_fraction", "attention_forward",
    "attention_backward",
)  # fmt: skip


@cache
def _host_rate() -> float:
    return float(fact("kernels.host.gbytes_per_s"))
