"""Measures Triton kernels by Triton's interpreter: a launch, and a program of its grid. It needs the extra."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from statistics import median
from typing import Any

from benchmarks.device_rows import apart
from benchmarks.figures import Figure

BLOCK, PROGRAMS, LAUNCHES, ROUNDS = 256, 64, 20, 5


def measure(say: Callable[[str], None]) -> list[Figure]:
    """Measure the kernel; nothing where Triton is not installed."""
    from streamrace.device.triton import presence

    if not presence.usable():
        say(f"triton: not measured: {presence.advice()}")
        return []
    return apart("triton", say)


def measured(say: Callable[[str], None]) -> Iterator[Figure]:
    """Yield the processor time of a launch with one program, and what each further program adds."""
    import torch

    from tests.device import triton_kernels

    say(f"triton: {ROUNDS} rounds of {LAUNCHES} launches")
    size = BLOCK * PROGRAMS
    left, right, out = (torch.ones(size, device="cuda") for _ in range(3))

    def timed(programs: int) -> float:
        kernel: Any = triton_kernels.add
        torch.cuda.synchronize()
        began = time.process_time()
        for _ in range(LAUNCHES):
            kernel[(programs,)](left, right, out, size, BLOCK=BLOCK)
        torch.cuda.synchronize()
        return (time.process_time() - began) / LAUNCHES * 1e3

    timed(1)
    one, many = ([timed(programs) for _ in range(ROUNDS)] for programs in (1, PROGRAMS))
    each = [(long - short) / (PROGRAMS - 1) for short, long in zip(one, many, strict=True)]
    note = f"median of {ROUNDS} rounds of {LAUNCHES}: {min(one):.2f} to {max(one):.2f}"
    yield Figure("triton", f"a launch of one program that adds {BLOCK} numbers", median(one), "ms", None, note)
    yield Figure("triton", f"each further program of {PROGRAMS}", median(each), "ms")
