"""Compares the bucket size of DistributedDataParallel with the model, and scales it where that is asked for.

A model that fits into one bucket is reduced once, after its backward pass: nothing overlaps, as it does in a large one.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import ModuleType
from typing import Any

from streamrace.device import limits

_FIRST = 1.0  # MiB: the first bucket, if the program sets no size
_DEFAULT = 25.0  # MiB
_MIB = 2**20


def adapt(module: ModuleType) -> None:
    """Note the bucket size of each model that is wrapped by torch's module ``torch.nn.parallel.distributed``."""
    limits.observe(module.DistributedDataParallel, _limited)


def _limited(given: Mapping[str, Any]) -> dict[str, float]:
    """Note the bucket size if the model fits into the first bucket; return the size to which it is scaled."""
    trained = [each for each in given["module"].parameters() if each.requires_grad]
    sizes = [each.numel() * each.element_size() for each in trained]
    size = given.get("bucket_cap_mb")
    if not sizes or given.get("bucket_cap_mb_list") or sum(sizes) > (_FIRST if size is None else size) * _MIB:
        return {}
    before = _DEFAULT if size is None else float(size)
    scaled = {"bucket_cap_mb": max(sizes) / _MIB} if limits.scaling() and max(sizes) < sum(sizes) else {}
    never_met = {} if scaled else {"bucket_cap_mb": before}
    changes = {name: (before, after) for name, after in scaled.items()}
    limits.note("DDP", sum(each.numel() for each in trained), never_met, changes)
    return scaled
