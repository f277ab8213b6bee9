"""Computes the cost of work in virtual time: a simple model, with factors for slowed-down work.

A kernel takes the time of its floating point operations or of its bytes, at least ``kernel_ns``. The C++ part asks
once per signature, and once per pair of kernel and stream for the timing's stretch factor.
"""

from __future__ import annotations

import ctypes
import importlib.util
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

from streamrace.device.build import torch_folder
from streamrace.device.hardware.kernels import DTYPES, PEER, Signature
from streamrace.device.library import Factor, KernelCost, functions

_MATRIX_PRODUCTS = {"aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm"}
_ATTENTION = "aten::_scaled_dot_product_flash_attention_for_cpu"
Shape = tuple[int, ...]


@dataclass(frozen=True)
class Meeting:
    """The global ranks that take part in a collective.

    ``link``: name of the link that carries it (``nccl 0,1``); ``origin``: for a send and its receive, the ranks of the
    process group that issues them.
    """

    members: Shape
    link: str = ""
    origin: Shape = ()


@dataclass(frozen=True)
class Costs:
    """Costs in virtual nanoseconds. ``slow``: ``fnmatch`` patterns (``kernel:aten::mm``, ``stream:3``) to factors.

    ``call_ns``: of a call of one of the program's Python functions, which are not counted if it is 0.
    """

    launch_ns: int = 5000
    synchronize_ns: int = 5000
    query_ns: int = 1000
    call_ns: int = 0
    kernel_ns: int = 2000
    flops_per_ns: float = 150e3
    bytes_per_ns: float = 1500.0
    collective_ns: int = 10000
    link_bytes_per_ns: float = 100.0
    slow: Mapping[str, float] = field(default_factory=dict)

    def kernel(self, call: Signature) -> float:
        """Return the time of a kernel, without stretches."""
        if call.name == PEER:
            return max(self.kernel_ns, call.nbytes / self.link_bytes_per_ns)
        return max(self.kernel_ns, flops(call.name, call.shapes) / self.flops_per_ns, call.nbytes / self.bytes_per_ns)

    def collective(self, name: str, nbytes: int, meeting: Meeting, stream: int) -> float:
        """Return a collective's time, stretched: a ring over links of equal speed. ``nbytes``: total bytes moved."""
        members = len(meeting.members)
        passes = (members - 1) / members if members > 2 or "send" not in name else 1.0
        alone = self.collective_ns + nbytes * passes * (2 if "all_reduce" in name else 1) / self.link_bytes_per_ns
        return alone * self.factor(name, stream)

    def factor(self, kernel: str, stream: int) -> float:
        """Return the factor by which this timing stretches a kernel on a stream."""
        keys = (f"kernel:{kernel}", f"stream:{stream}")
        return math.prod(value for pattern, value in self.slow.items() if any(fnmatchcase(k, pattern) for k in keys))


def flops(name: str, shapes: Sequence[Shape]) -> int:
    """Count the floating point operations of products, attention and convolutions, like ``torch.utils.flop_counter``.

    ``shapes``: of the tensor arguments, then of the results.
    """
    if name in _MATRIX_PRODUCTS and len(shapes) >= 2:
        left, right = shapes[1:3] if "add" in name else shapes[:2]
        return 2 * math.prod(left) * right[-1]
    if name == _ATTENTION and len(shapes) >= 3:  # query-key products, weight-value products
        query, key, value = shapes[:3]
        return 2 * math.prod(query[:-1]) * key[-2] * (query[-1] + value[-1])
    if name == f"{_ATTENTION}_backward" and len(shapes) >= 4:  # the scores again, and two products for each
        query, key, value = shapes[1:4]
        return 2 * math.prod(query[:-1]) * key[-2] * (3 * query[-1] + 2 * value[-1])
    if name == "aten::convolution" and len(shapes) >= 3:
        image, weight, result = shapes[0], shapes[1], shapes[-1]
        of = image if weight[0] != result[1] else result  # different sizes mean a transposed convolution
        return 2 * math.prod(of[:1] + of[2:]) * math.prod(weight)
    if name == "aten::convolution_backward" and len(shapes) >= 3:  # for the image and for the weights
        gradient, weight = shapes[0], shapes[2]
        return 4 * math.prod(gradient[:1] + gradient[2:]) * math.prod(weight)
    return 0


_OURS = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_COUNTED, _PASSES, _NOTHING, _PROGRAM = range(4)  # as in csrc/python_calls.h


def _files() -> dict[str, int]:
    """Return, by prefix of a file's path, which calls of functions are the program's: those of all others are."""
    standard = os.path.dirname(os.__file__)
    return {
        _OURS + os.path.join("device", "scripts.py"): _PROGRAM,
        _OURS + os.path.join("device", "ranks", "child.py"): _PROGRAM,
        _OURS + os.path.join("device", "dry", "steps.py"): _PASSES,  # stands in for torch's backward()
        _OURS + "device" + os.sep: _NOTHING,
        _OURS + "scenarios" + os.sep: _COUNTED,  # they are programs, as a user's
        _OURS: _PASSES,
        "<frozen importlib": _NOTHING,  # what is imported late differs from process to process
        "<frozen ": _PASSES,
        str(torch_folder() / "_opaque_base.py"): _NOTHING,  # torch asks it while it prepares a copy, now and then
        **_filelock(),
        **{os.path.join(standard, place) + os.sep: _COUNTED for place in ("site-packages", "dist-packages")},
        standard + os.sep: _PASSES,  # it differs from one version of Python to the next
    }


def _filelock() -> dict[str, int]:
    """Return the folder of filelock, whose audit hook Python 3.12 and later call at events that no program asks for."""
    found = importlib.util.find_spec("filelock")
    return {os.path.dirname(found.origin) + os.sep: _NOTHING} if found and found.origin else {}


_current = [Costs()]


def current() -> Costs:
    """Return the costs by which the device of this process is timed."""
    return _current[0]


def use(costs: Costs) -> None:
    """Time the device of this process by ``costs`` from now on."""
    f = functions()
    _current[0] = costs
    if costs.call_ns:
        files = _files()
        paths = (ctypes.c_char_p * len(files))(*map(os.fsencode, files))
        f.count_calls(paths, (ctypes.c_int * len(files))(*files.values()), len(files))

    def kernel(name: bytes, nbytes: int, words: Any, count: int, switches: int, counted: Any) -> float:
        shapes, dtypes, at = [], [], 0
        while at < count:
            dims = words[at] & 0xFF  # the bits above hold the dtype
            shapes.append(tuple(words[at + 1 : at + 1 + dims]))
            dtypes.append(DTYPES.get(words[at] >> 8, "unknown"))
            at += 1 + dims
        signature = Signature(name.decode(), nbytes, tuple(shapes), tuple(dtypes), switches)
        if counted:
            counted[0] = flops(signature.name, signature.shapes)
        return costs.kernel(signature)

    def factor(name: bytes, stream: int) -> float:
        return costs.factor(name.decode(), stream)

    f.costs(
        costs.launch_ns,
        costs.synchronize_ns,
        costs.query_ns,
        costs.call_ns,
        f.callback("kernel", KernelCost, kernel),
        f.callback("factor", Factor, factor),
    )
