"""Makes each of a detector's own operators on values a single launch, known to the detectors by name.

On a GPU such an operator is several kernels; what counts is all that they read together.
"""

from __future__ import annotations

from types import ModuleType

import torch


def adapt(module: ModuleType) -> None:
    """Register the operators that ``module``, just imported, defines and lists in ``OPERATORS``."""
    for name in module.OPERATORS:
        torch.ops.simgpu.take_whole(name)
