"""Supplies the names that old DeepSpeed releases need to start on today's torch, numpy and Python: one line each.

None changes how a release orders its work: the names existed when the release was made, and no longer do. Applied
before DeepSpeed is imported.
"""

from __future__ import annotations

import functools
import importlib.machinery
import logging
import sys
import types
from collections.abc import Callable
from typing import Any, NamedTuple

from packaging.version import Version


class Need(NamedTuple):
    """A need of old releases. ``last``: the newest release that has it. ``cpu``: a need of DeepSpeed's CPU accelerator
    only; with a CUDA accelerator, DeepSpeed probes for the module to tell the two apart, so it must be absent.
    """

    what: str
    last: str
    supply: Callable[[], None]
    cpu: bool = False


def _empty_module(name: str) -> Callable[[], None]:
    def supply() -> None:
        module = types.ModuleType(name)
        module.__spec__ = importlib.machinery.ModuleSpec(name, None)
        sys.modules.setdefault(name, module)

    return supply


def _attribute(module: str, name: str, value: Any) -> Callable[[], None]:
    def supply() -> None:
        owner = importlib.import_module(module)
        if not hasattr(owner, name):
            setattr(owner, name, value)

    return supply


def _rank_error() -> None:
    """Restore RuntimeError for a rank outside a group: a loop over the group's ranks ends by it."""
    owner: Any = importlib.import_module("torch.distributed.distributed_c10d")
    original = owner.get_global_rank

    def get_global_rank(group: Any, group_rank: int) -> int:
        try:
            return int(original(group, group_rank))
        except ValueError as error:
            raise RuntimeError(str(error)) from error

    owner.get_global_rank = get_global_rank


_CPU = "imported by the CPU accelerator"
_ELASTIC = "torch.distributed.elastic.agent.server.api"

_TYPES = {"BFloat16Tensor": "bfloat16", "ByteTensor": "uint8", "DoubleTensor": "double", "FloatTensor": "float",
          "HalfTensor": "half", "IntTensor": "int", "LongTensor": "long"}  # fmt: skip

NEEDS = (
    Need("RuntimeError for a rank outside a group", "0.12.6", _rank_error),
    Need(f"intel_extension_for_pytorch, {_CPU}", "0.13.5", _empty_module("intel_extension_for_pytorch"), True),
    Need(f"oneccl_bindings_for_pytorch, {_CPU}", "0.13.5", _empty_module("oneccl_bindings_for_pytorch"), True),
    Need("torch elastic's logger", "0.16.9", _attribute(_ELASTIC, "log", logging.getLogger("torch.elastic"))),
    Need("torch elastic's _get_socket_with_port", "0.16.9", _attribute(_ELASTIC, "_get_socket_with_port", None)),
    Need("numpy.BUFSIZE", "0.16.9", _attribute("numpy", "BUFSIZE", 8192)),
)  # fmt: skip


def constructors(accelerator: type[Any]) -> list[str]:
    """Replace ``accelerator``'s ``torch.cuda.FloatTensor`` and such, of up to 0.13.3, which only a CUDA build can call.

    The replacements are those of 0.13.4. Returns the replaced names.
    """
    import torch

    names = []
    for name, dtype in _TYPES.items():
        now = getattr(accelerator, name, None)
        if isinstance(now, property) and now.fget and now.fget(None) is getattr(torch.cuda, name):
            setattr(
                accelerator, name, _giving(functools.partial(torch.tensor, dtype=getattr(torch, dtype), device="cuda"))
            )
            names.append(name)
    return names


def _giving(value: Any) -> property:
    return property(lambda _: value)


def supply(version: str, *, cpu: bool = True) -> list[str]:
    """Supply release ``version``'s needs, and return them. ``cpu``: its CPU accelerator will be imported."""
    needs = [need for need in NEEDS if Version(version) <= Version(need.last) and (cpu or not need.cpu)]
    for need in needs:
        need.supply()
    return [need.what for need in needs]
