"""Lists operators that write an argument without declaring it in their schema. For the device, this is an access.

Found and kept up to date by ``tests/device/test_undeclared_writes.py``: it compares the memory of all arguments
before and after, over all operators for which torch has samples. Listed without an overload: what holds
for ``f`` holds for ``f.out``.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Hidden:
    """``arguments`` are written; with ``when``, only if the argument of that name is true."""

    arguments: tuple[str, ...]
    when: str = ""


HIDDEN = {
    "aten::native_batch_norm": Hidden(("running_mean", "running_var"), "training"),
    "aten::batch_norm_update_stats": Hidden(("running_mean", "running_var")),
    "aten::batch_norm_gather_stats": Hidden(("running_mean", "running_var")),
    "aten::batch_norm_gather_stats_with_counts": Hidden(("running_mean", "running_var")),
}


def install() -> None:
    """Register the hidden writes with the device, before it runs any of these operators."""
    for name, hidden in HIDDEN.items():
        torch.ops.simgpu.hides(name, list(hidden.arguments), hidden.when)
