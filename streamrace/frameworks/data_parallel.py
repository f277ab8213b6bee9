"""Compares limits of DistributedDataParallel and FSDP1 with the model, and scales them where that is asked for.

A model that fits into one bucket of DDP is reduced once, after its backward pass, and one that FSDP's size-based policy
does not divide is gathered as a whole: nothing overlaps, as it does in a large one.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from types import ModuleType
from typing import Any

from streamrace.device import limits

_FIRST = 1.0  # MiB: the first bucket, if the program sets no size
_DEFAULT = 25.0  # MiB
_MIB = 2**20
_LEAST = int(1e8)  # elements of a part, if the program's policy sets no number


def adapt(module: ModuleType) -> None:
    """Note the limits of each model that a class of torch's ``module`` wraps: DDP, or FSDP1."""
    for name, limited in (("DistributedDataParallel", _bucket), ("FullyShardedDataParallel", _policy)):
        if name in vars(module):
            limits.observe(vars(module)[name], limited)


def _bucket(given: Mapping[str, Any]) -> dict[str, float]:
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


def _policy(given: Mapping[str, Any]) -> dict[str, Any]:
    """Note ``min_num_params`` of the size-based policy if it is above the model; return the policy with it scaled."""
    from torch.distributed.fsdp.wrap import size_based_auto_wrap_policy

    policy = given.get("auto_wrap_policy")
    settings = dict(policy.keywords) if isinstance(policy, functools.partial) else {}
    if size_based_auto_wrap_policy not in (policy, getattr(policy, "func", None)):
        return {}
    before = settings.get("min_num_params", _LEAST)
    total = sum(each.numel() for each in given["module"].parameters())
    if before <= total:
        return {}
    now = max(1, round(before * total / limits.LARGE))
    changes = {"min_num_params": (before, now)} if limits.scaling() else {}
    limits.note("FSDP", total, {} if changes else {"min_num_params": before}, changes)
    settings["min_num_params"] = now
    return {"auto_wrap_policy": functools.partial(size_based_auto_wrap_policy, **settings)} if changes else {}
