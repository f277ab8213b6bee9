"""What torch and DeepSpeed would ask the machine, answered before they ask: the same bits on every processor.

Which kernels compute is decided by what the processor can do, and they round differently: the same training printed
5.251081, 5.250981 and 5.250969 for one loss, with the instruction sets of three processors. So the kernels are those
that every x86-64 processor has; that costs a tenth to a fifth of the processor time of ``make repro-unstable``. Only
the environment can say it, and only before torch is imported.

Not for the user's own training (``streamrace watch``, the pytest plugin, the hooks of ``streamrace.detectors.live``):
that runs as it would without us. What DeepSpeed asks torch later is answered by
:mod:`streamrace.frameworks.deepspeed.adapter`.
"""

from __future__ import annotations

import os

KERNELS = {
    "OMP_NUM_THREADS": "1",  # sums are split among the threads
    "ATEN_CPU_CAPABILITY": "default",  # torch's own kernels; "avx2" is not in every processor, and rounds otherwise
    "ONEDNN_MAX_CPU_ISA": "SSE41",  # its matrix products, and whether it has bf16 and fp16 ones
    "MKL_CBWR": "COMPATIBLE",  # the one choice of MKL's that gives the same bits on other makers' processors too
}


def answer(*, deepspeed: bool = True) -> None:
    """Before torch is imported. What the environment says already stands. ``deepspeed``: answer what it asks, too."""
    for name, value in KERNELS.items():
        os.environ.setdefault(name, value)
    if deepspeed:
        os.environ.setdefault("DS_ACCELERATOR", "cpu")  # or DeepSpeed looks for devices, and warns


def settle() -> None:
    """Once torch is imported: no setting of :data:`KERNELS` may make a value wrong.

    oneDNN's convolutions of int8 add pairs of products in 16 bits, saturated, on the processors to which it is held.
    torch chooses them by what the processor can do, of which the settings tell it nothing. FBGEMM's ask by themselves.
    """
    import torch

    if torch.backends.quantized.engine == "x86":  # which takes now one library, now the other
        torch.backends.quantized.engine = "fbgemm"
