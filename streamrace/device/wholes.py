"""A detector's own looks at values are one launch each, as the detectors know them by name.

On a GPU such an operator is several kernels; of what it reads it is the whole that counts.
"""

from __future__ import annotations

from types import ModuleType

import torch


def adapt(module: ModuleType) -> None:
    """``module`` has just been imported: it defines operators, and names them in ``OPERATORS``."""
    for name in module.OPERATORS:
        torch.ops.simgpu.take_whole(name)
