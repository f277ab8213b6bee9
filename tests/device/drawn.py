"""The device's random numbers on the CPU, so that a program's bits can be compared on both."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode


class AsTheDevice(TorchDispatchMode):
    """Inside, what is drawn on the CPU is what the device's generator gives, which moves on."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if torch.Tag.nondeterministic_seeded not in func.tags or kwargs.get("generator") is not None:
            return func(*args, **kwargs)
        torch.cuda.init()  # a seed may wait for that
        torch.default_generator.set_state(torch.ops.simgpu.draw(0))
        made = func(*args, **kwargs)
        used = [one for one in pytree.tree_leaves((args, made)) if isinstance(one, torch.Tensor)]
        torch.ops.simgpu.draw(max(one.numel() for one in used))
        return made
