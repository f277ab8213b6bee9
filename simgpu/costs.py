"""What work costs in virtual time: a simple model, and what is to be slower.

A kernel takes as long as its floating point operations or its bytes need, at least ``kernel_ns``. The C++ part asks
once per signature, and once for each pair of kernel and stream by which factor the timing stretches it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

from simgpu.library import Factor, KernelCost, functions

_MATRIX_PRODUCTS = {"aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm"}


@dataclass(frozen=True)
class Costs:
    """Virtual nanoseconds. ``slow``: patterns (``fnmatch``) of ``kernel:aten::mm`` or ``stream:3`` to factors."""

    launch_ns: int = 5000
    synchronize_ns: int = 5000
    query_ns: int = 1000
    kernel_ns: int = 2000
    flops_per_ns: float = 150e3
    bytes_per_ns: float = 1500.0
    collective_ns: int = 10000
    link_bytes_per_ns: float = 100.0
    slow: Mapping[str, float] = field(default_factory=dict)

    def kernel(self, name: str, nbytes: int, shapes: list[tuple[int, ...]]) -> float:
        """A kernel by itself. ``nbytes``: of all its tensors."""
        return max(self.kernel_ns, flops(name, shapes) / self.flops_per_ns, nbytes / self.bytes_per_ns)

    def collective(self, name: str, nbytes: int, members: int) -> float:
        """A collective by itself: a ring over links of one speed. ``nbytes``: of the whole that is exchanged."""
        passes = (members - 1) / members if members > 2 or "send" not in name else 1.0
        return self.collective_ns + nbytes * passes * (2 if "all_reduce" in name else 1) / self.link_bytes_per_ns

    def factor(self, kernel: str, stream: int) -> float:
        """By how much this timing stretches it."""
        of = (f"kernel:{kernel}", f"stream:{stream}")
        return math.prod(value for pattern, value in self.slow.items() if any(fnmatchcase(one, pattern) for one in of))


def flops(name: str, shapes: list[tuple[int, ...]]) -> int:
    """Floating point operations of a matrix product: its last tensor is the result, where that is an argument too."""
    if name not in _MATRIX_PRODUCTS or len(shapes) < 2:
        return 0
    one, other = shapes[1:3] if "add" in name else shapes[:2]
    return 2 * math.prod(one) * other[-1]


_current = [Costs()]


def current() -> Costs:
    """What the device of this process is timed by."""
    return _current[0]


def use(costs: Costs) -> None:
    """Time the device of this process by ``costs`` from now on."""
    f = functions()
    _current[0] = costs

    def kernel(name: bytes, nbytes: int, words: Any, count: int) -> float:
        shapes, at = [], 0
        while at < count:
            dims = words[at]
            shapes.append(tuple(words[at + 1 : at + 1 + dims]))
            at += 1 + dims
        return costs.kernel(name.decode(), nbytes, shapes)

    def factor(name: bytes, stream: int) -> float:
        return costs.factor(name.decode(), stream)

    f.costs(
        costs.launch_ns,
        costs.synchronize_ns,
        costs.query_ns,
        f.callback("kernel", KernelCost, kernel),
        f.callback("factor", Factor, factor),
    )
