"""Models matrix products (and convolutions, as products): tiles, waves over the multiprocessors, depth.

The result is cut into tiles, each computed by a block of threads. Each multiprocessor takes one block at a time, so
the last round takes as long as a full one, however few tiles it has (NVIDIA, Matrix Multiplication Background User's
Guide: tile and wave quantisation). If tiles are few, several blocks share one, each with a part of the inner dimension
(split-K), and their partial results are summed. The library picks the fastest of these ways, and so does this model.
"""

from __future__ import annotations

import math
from functools import cache
from typing import NamedTuple

from streamrace.device.hardware.facts import fact
from streamrace.device.hardware.kernels.gpu import Gpu
from streamrace.device.hardware.kernels.signature import Shape, Signature

PRODUCTS = {"aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm"}
_SUMS = 4  # bytes per element of a partial sum


class Product(NamedTuple):
    """``batch`` products of ``m`` x ``k`` with ``k`` x ``n`` elements of ``dtype``."""

    batch: int
    m: int
    n: int
    k: int
    dtype: str

    @property
    def flops(self) -> int:
        return 2 * self.batch * self.m * self.n * self.k


class _Ways(NamedTuple):
    tiles: tuple[tuple[int, int, float], ...]
    splits: tuple[int, ...]
    depth: int
    fill: int
    l2: float


@cache
def _ways() -> _Ways:
    return _Ways(
        tiles=tuple((int(rows), int(columns), float(rate)) for rows, columns, rate in fact("kernels.gemm.tiles")),
        splits=tuple(fact("kernels.gemm.splits")),
        depth=int(fact("kernels.gemm.depth")),
        fill=int(fact("kernels.gemm.fill")),
        l2=float(fact("kernels.l2_over_memory")),
    )


def products(kernel: Signature) -> tuple[Product, ...]:
    """Return the matrix products that a kernel consists of; empty for other kernels."""
    name, shapes = kernel.name, kernel.shapes
    if name in PRODUCTS and len(shapes) >= 3:
        at = 1 if "add" in name else 0
        left, right = shapes[at : at + 2]
        if len(left) < 2 or len(left) != len(right):
            return ()
        return (Product(math.prod(left[:-2]), left[-2], right[-1], left[-1], _dtype(kernel, at)),)
    if name == "aten::convolution" and len(shapes) >= 3:
        image, weight, result = shapes[0], shapes[1], shapes[-1]
        of = image if weight[0] != result[1] else result  # different sizes mean a transposed convolution
        return (_convolution(of, weight, _dtype(kernel, 0)),)
    if name == "aten::convolution_backward" and len(shapes) >= 3:  # for the image and for the weights
        gradient, weight = shapes[0], shapes[2]
        forward = _convolution(gradient, weight, _dtype(kernel, 0))
        return (forward._replace(n=forward.k, k=forward.n), forward._replace(m=forward.k, k=forward.m))
    return ()


def _convolution(of: Shape, weight: Shape, dtype: str) -> Product:
    return Product(1, of[0] * math.prod(of[2:]), weight[0], math.prod(weight[1:]), dtype)


def _dtype(kernel: Signature, at: int) -> str:
    return kernel.dtypes[at] if at < len(kernel.dtypes) else "bfloat16"


def nanoseconds(product: Product, gpu: Gpu) -> float:
    """Return the time of the arithmetic, without the costs common to all kernels."""
    ways = _ways()
    batch, m, n, k, dtype = product
    rate = gpu.peak(dtype) * gpu.matmul / gpu.sms  # of one multiprocessor
    fill = ways.fill * gpu.peak(dtype) / gpu.peak("bfloat16")  # the same time for all types
    best = math.inf
    for rows, columns, reached in ways.tiles:
        blocks = batch * -(-m // rows) * -(-n // columns)
        for parts in ways.splits:
            deep = -(-k // (parts * ways.depth)) * ways.depth + fill
            waves = -(-blocks * parts // gpu.sms)
            took = waves * 2 * rows * columns * deep / (rate * reached)
            if parts > 1:
                took += 2 * parts * batch * m * n * _SUMS / (gpu.bytes_per_ns * ways.l2)
            best = min(best, took)
    return best
