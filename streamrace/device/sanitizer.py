"""Adapts torch's own sanitizer (``torch.cuda._sanitizer``, CSAN) to the simulated GPU, and hides internal operators.

CSAN follows operators with a dispatch mode, and streams, events and memory with callbacks, which the C++ part calls
where a CUDA build does (``csrc/gpu_trace.h``). It is switched on as usual: by ``enable_cuda_sanitizer()``, or
``TORCH_CUDA_SANITIZER=1``. ``docs/results/csan.md`` compares its verdicts with ours.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractContextManager

_ASKED = "TORCH_CUDA_SANITIZER"


def postpone() -> Callable[[], None]:
    """Keep torch from switching the sanitizer on while it is imported, before ``torch.cuda`` is replaced.

    To be called before the import. The returned function switches the sanitizer on later, if the variable is set.
    """
    setting = os.environ.pop(_ASKED, None)

    def switch_on() -> None:
        if setting is None:
            return
        os.environ[_ASKED] = setting
        from torch.cuda._sanitizer import enable_cuda_sanitizer

        enable_cuda_sanitizer()

    return switch_on


def unseen() -> AbstractContextManager[None]:
    """Hide operators from the program's dispatch modes: for those that do not exist on a GPU."""
    from torch import _C

    guard: AbstractContextManager[None] = _C._ExcludeDispatchKeyGuard(_C.DispatchKeySet(_C.DispatchKey.Python))
    return guard
