"""torch's own sanitizer (``torch.cuda._sanitizer``, CSAN) on the simulated GPU, and what it is not to see.

CSAN follows operators with a dispatch mode, and streams, events and memory with callbacks, which the C++ part calls
where a CUDA build does (``csrc/gpu_trace.h``). It is switched on as ever: ``enable_cuda_sanitizer()``, or
``TORCH_CUDA_SANITIZER=1``. How its verdicts compare with ours: ``docs/results/csan.md``.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractContextManager

_ASKED = "TORCH_CUDA_SANITIZER"


def postpone() -> Callable[[], None]:
    """To be called before torch is imported, which would switch it on before ``torch.cuda`` has its face.

    What it gives, called when that is there, switches it on where the variable is set.
    """
    asked = os.environ.pop(_ASKED, None)

    def switch_on() -> None:
        if asked is None:
            return
        os.environ[_ASKED] = asked
        from torch.cuda._sanitizer import enable_cuda_sanitizer

        enable_cuda_sanitizer()

    return switch_on


def unseen() -> AbstractContextManager[None]:
    """Inside, no dispatch mode of the program sees an operator: for what is none on a GPU."""
    from torch import _C

    made: AbstractContextManager[None] = _C._ExcludeDispatchKeyGuard(_C.DispatchKeySet(_C.DispatchKey.Python))
    return made
