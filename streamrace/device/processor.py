"""Fixes what torch and DeepSpeed ask of the machine, before they ask: equal results, bit by bit, on every processor.

The processor's instruction sets decide which kernels compute, and kernels round differently: one training printed
5.251081, 5.250981 and 5.250969 for the same loss, with the instruction sets of three processors. So this module selects
the kernels that every x86-64 processor has, at a cost of a tenth to a fifth of the processor time of ``make
repro-unstable``. Only the environment can select them, and only before torch is imported.

Not for a user's own training (``streamrace watch``, the pytest plugin, the hooks of ``streamrace.detectors.live``),
which must run as it would without us. What DeepSpeed asks torch later is answered by
:mod:`streamrace.frameworks.deepspeed.adapter`.
"""

from __future__ import annotations

import os

KERNELS = {
    "OMP_NUM_THREADS": "1",  # sums are split among the threads
    "ATEN_CPU_CAPABILITY": "default",  # torch's own kernels; "avx2" is not on every processor, and rounds otherwise
    "ONEDNN_MAX_CPU_ISA": "SSE41",  # oneDNN's matrix products, and whether it has bf16 and fp16 ones
    "MKL_CBWR": "COMPATIBLE",  # MKL's only mode with equal bits on other makers' processors, too
}


def answer(*, deepspeed: bool = True) -> None:
    """Set the environment before torch is imported; set variables stay. ``deepspeed``: also for DeepSpeed's queries."""
    for name, value in KERNELS.items():
        os.environ.setdefault(name, value)
    if deepspeed:
        os.environ.setdefault("DS_ACCELERATOR", "cpu")  # otherwise DeepSpeed searches for devices, and warns


def settle() -> None:
    """Keep the settings of :data:`KERNELS` from making a value wrong, once torch is imported.

    Held to these instruction sets, oneDNN's int8 convolutions add pairs of products in 16 bits, with saturation. torch
    selects them by the processor's abilities, regardless of the settings. FBGEMM checks the processor itself.
    """
    import torch

    if torch.backends.quantized.engine == "x86":  # this engine uses either library, case by case
        torch.backends.quantized.engine = "fbgemm"
