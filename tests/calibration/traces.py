"""Traces as torch's profiler writes them, of kernels that take what a profile says."""

from __future__ import annotations

import math
import random
from typing import Any

from streamrace.device.hardware import Profile
from streamrace.device.hardware.kernels import Kernels, Signature
from streamrace.device.hardware.kernels.signature import SIZES

TYPES = {"bfloat16": "c10::BFloat16", "float32": "float", "float16": "c10::Half"}
FLASH = "aten::_scaled_dot_product_flash_attention"
_SHAPES = [(4096, 4096), (4096, 11008), (11008, 4096)]


def of(profile: Profile, *, noise: float = 0.0, linked: str = "External id", seed: int = 0) -> dict[str, Any]:
    """A step on ``profile``'s GPU. ``noise``: each kernel takes up to so much longer or less, and a few far longer.

    ``linked``: kernels name their operator (External id), or only the launch does by where it stands (correlation).
    """
    kernels, draw = Kernels.of(profile), random.Random(seed)
    assert kernels is not None
    events: list[dict[str, Any]] = []

    def ran(name: str, ours: Signature, dims: list[Any], types: list[str], concrete: list[str] | None = None) -> None:
        number, start = len(events) + 1, 100.0 * len(events)
        took = kernels.nanoseconds(ours) / 1000 * (1 + noise * draw.uniform(-1, 1))
        if noise and draw.random() < 0.02:
            took *= 20  # something else had the GPU
        args = {"External id": number, "Input Dims": dims, "Input type": types}
        if concrete:
            args["Concrete Inputs"] = concrete
        lane = {"ph": "X", "pid": 1, "tid": 1}
        events.append({**lane, "cat": "cpu_op", "name": name, "ts": start, "dur": 50.0, "args": args})
        launch = {"correlation": 7 * number, "External id": number if linked == "External id" else 7 * number}
        called = {"name": "cudaLaunchKernel", "ts": start + 10, "dur": profile.launch_us}
        events.append({**lane, "cat": "cuda_runtime", **called, "args": launch})
        there = {"ph": "X", "pid": 0, "tid": 7, "ts": start + 40, "dur": took}
        events.append({**there, "cat": "kernel", "name": "kernel", "args": launch})

    def product(m: int, n: int, k: int) -> None:
        shapes = ((m, k), (k, n), (m, n))
        ours = signature("aten::mm", shapes, "bfloat16")
        ran("aten::mm", ours, [[m, k], [k, n]], [TYPES["bfloat16"]] * 2)

    def added(size: int, dtype: str) -> None:
        ran(
            "aten::add",
            signature("aten::add", ((size,),) * 3, dtype),
            [[size], [size], []],
            [TYPES[dtype]] * 2 + ["Scalar"],
        )

    def attended(keys: int, causal: bool, backward: bool) -> None:
        shape, need = (4, 32, keys, 128), 4 if backward else 3
        name = "aten::_scaled_dot_product_flash_attention_for_cpu" + "_backward" * backward
        ours = signature(name, (shape,) * (need + 1), "bfloat16")._replace(switches=int(causal))
        concrete = [""] * 12
        concrete[11 if backward else 4] = str(causal)
        ran(FLASH + "_backward" * backward, ours, [[*shape]] * need, [TYPES["bfloat16"]] * need, concrete)

    for layer in range(12):
        for width, depth in _SHAPES:
            product(2048 * (1 + layer % 4), width, depth)
        for size in (256, 1024, 1 << 22, 1 << 23, 1 << 24):
            added(size + 8 * layer, "bfloat16" if layer % 2 else "float32")
        attended(2048 << layer % 3, layer % 2 == 0, backward=False)
        attended(2048 << layer % 3, layer % 2 == 0, backward=True)
        nbytes = (1 << 22) * (1 + layer)
        took = kernels.nanoseconds(Signature("cudaMemcpyAsync HtoD", nbytes)) / 1000
        name, args = "Memcpy HtoD (Pinned -> Device)", {"bytes": nbytes}
        events.append({"ph": "X", "cat": "gpu_memcpy", "name": name, "ts": 0, "dur": took, "args": args})
    return {"schemaVersion": 1, "deviceProperties": [{"name": "NVIDIA A100-SXM4-80GB"}], "traceEvents": events}


def signature(name: str, shapes: tuple[tuple[int, ...], ...], dtype: str) -> Signature:
    nbytes = SIZES[dtype] * sum(math.prod(shape) for shape in shapes)
    return Signature(name, nbytes, shapes, (dtype,) * len(shapes))
