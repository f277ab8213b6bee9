"""What work costs in virtual time: a simple model, and what is to be slower.

A kernel takes as long as its floating point operations or its bytes need, at least ``kernel_ns``. The C++ part asks
once per signature, and once for each pair of kernel and stream by which factor the timing stretches it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

from streamrace.device.hardware.kernels import DTYPES, Signature
from streamrace.device.library import Factor, KernelCost, functions

_MATRIX_PRODUCTS = {"aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm"}
_ATTENTION = "aten::_scaled_dot_product_flash_attention_for_cpu"
Shape = tuple[int, ...]


@dataclass(frozen=True)
class Meeting:
    """The ranks that a collective brings together, global ones.

    ``link``: the name of what carries it (``nccl 0,1``); ``origin``: of a send and its receive, the ranks of the
    process group that they are issued from.
    """

    members: Shape
    link: str = ""
    origin: Shape = ()


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

    def kernel(self, one: Signature) -> float:
        """A kernel by itself."""
        return max(self.kernel_ns, flops(one.name, one.shapes) / self.flops_per_ns, one.nbytes / self.bytes_per_ns)

    def collective(self, name: str, nbytes: int, meeting: Meeting, stream: int) -> float:
        """A collective in this timing: a ring over links of one speed. ``nbytes``: of the whole that is exchanged."""
        members = len(meeting.members)
        passes = (members - 1) / members if members > 2 or "send" not in name else 1.0
        alone = self.collective_ns + nbytes * passes * (2 if "all_reduce" in name else 1) / self.link_bytes_per_ns
        return alone * self.factor(name, stream)

    def factor(self, kernel: str, stream: int) -> float:
        """By how much this timing stretches it."""
        of = (f"kernel:{kernel}", f"stream:{stream}")
        return math.prod(value for pattern, value in self.slow.items() if any(fnmatchcase(one, pattern) for one in of))


def flops(name: str, shapes: Sequence[Shape]) -> int:
    """Floating point operations of matrix products, attention and convolutions, as ``torch.utils.flop_counter``.

    ``shapes``: of the arguments that are tensors, then of the results.
    """
    if name in _MATRIX_PRODUCTS and len(shapes) >= 2:
        one, other = shapes[1:3] if "add" in name else shapes[:2]
        return 2 * math.prod(one) * other[-1]
    if name == _ATTENTION and len(shapes) >= 3:  # queries with keys, weights with values
        query, key, value = shapes[:3]
        return 2 * math.prod(query[:-1]) * key[-2] * (query[-1] + value[-1])
    if name == f"{_ATTENTION}_backward" and len(shapes) >= 4:  # the scores again, and two products of each
        query, key, value = shapes[1:4]
        return 2 * math.prod(query[:-1]) * key[-2] * (3 * query[-1] + 2 * value[-1])
    if name == "aten::convolution" and len(shapes) >= 3:
        image, weight, result = shapes[0], shapes[1], shapes[-1]
        of = image if weight[0] != result[1] else result  # the first is a transposed one
        return 2 * math.prod(of[:1] + of[2:]) * math.prod(weight)
    if name == "aten::convolution_backward" and len(shapes) >= 3:  # of the image and of the weights
        gradient, weight = shapes[0], shapes[2]
        return 4 * math.prod(gradient[:1] + gradient[2:]) * math.prod(weight)
    return 0


_current = [Costs()]


def current() -> Costs:
    """What the device of this process is timed by."""
    return _current[0]


def use(costs: Costs) -> None:
    """Time the device of this process by ``costs`` from now on."""
    f = functions()
    _current[0] = costs

    def kernel(name: bytes, nbytes: int, words: Any, count: int, switches: int, counted: Any) -> float:
        shapes, dtypes, at = [], [], 0
        while at < count:
            dims = words[at] & 0xFF  # and the type above it
            shapes.append(tuple(words[at + 1 : at + 1 + dims]))
            dtypes.append(DTYPES.get(words[at] >> 8, "unknown"))
            at += 1 + dims
        one = Signature(name.decode(), nbytes, tuple(shapes), tuple(dtypes), switches)
        if counted:
            counted[0] = flops(one.name, one.shapes)
        return costs.kernel(one)

    def factor(name: bytes, stream: int) -> float:
        return costs.factor(name.decode(), stream)

    f.costs(
        costs.launch_ns,
        costs.synchronize_ns,
        costs.query_ns,
        f.callback("kernel", KernelCost, kernel),
        f.callback("factor", Factor, factor),
    )
