"""Lists DeepSpeed's compiled extensions: which have a stand-in, and why the others are refused.

DeepSpeed builds an extension when a program requests it (``FusedAdamBuilder().load()``). CUDA extensions cannot run
here. Extensions for the host are C++ that takes a tensor's address: their accesses to pinned memory would not be seen.
So ``load`` either returns a module of ours, whose functions are torch operations, or raises with an alternative. The
builders themselves stay DeepSpeed's own classes: two of their methods are replaced.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

STAND_INS = {
    "CPUAdagradBuilder": "streamrace.frameworks.deepspeed.host_optimizers",
    "CPUAdamBuilder": "streamrace.frameworks.deepspeed.host_optimizers",
    "CPULionBuilder": "streamrace.frameworks.deepspeed.host_optimizers",
    "FusedAdamBuilder": "streamrace.frameworks.deepspeed.fused_optimizers",
    "FusedLionBuilder": "streamrace.frameworks.deepspeed.fused_optimizers",
    "QuantizerBuilder": "streamrace.frameworks.deepspeed.quantizer",
}
"""Builders, and the module that replaces their extension."""

_INSTEAD = {
    "AsyncIOBuilder": 'offload to "cpu" instead of "nvme"',
    "GDSBuilder": 'offload to "cpu" instead of "nvme"',
    "PinMemoryBuilder": "leave DS_PIN_MEMORY_BACKEND at torch",
    "FusedLambBuilder": "choose another optimizer, such as AdamW",
    "EvoformerAttnBuilder": "use torch's attention",
    "TransformerBuilder": "use torch's own layers",
    "StochasticTransformerBuilder": "use torch's own layers",
    "DeepCompileBuilder": 'leave "deepcompile" off',
}


class StandIn:
    """The result of ``load``: the functions of ``module``, and an error for those that it lacks."""

    def __init__(self, op: str, module: ModuleType) -> None:
        self._op, self._module = op, module

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._module, name, None)
        if value is None:
            raise AttributeError(
                f"streamrace: the function '{name}' of DeepSpeed's extension '{self._op}' has no stand-in on the "
                "simulated GPU: use torch's operators for it"
            )
        return value


def supply(accelerator: type[Any]) -> None:
    """Let the builders of DeepSpeed's ``accelerator``, which looks them up on first use, load stand-ins."""
    find: Callable[[Any], None] = accelerator._lazy_init_class_dict  # fills class_dict, once for all

    @functools.wraps(find)
    def find_and_replace(self: Any) -> None:
        if self.class_dict is None:
            find(self)
            replace(self.class_dict or {})

    accelerator._lazy_init_class_dict = find_and_replace


def replace(builders: Mapping[str, type[Any] | None]) -> None:
    """Let each builder, by its name, load its stand-in or refuse, and report its compatibility accordingly."""
    for name, builder in builders.items():
        if builder is not None:
            builder.load = _loading(name)
            builder.is_compatible = _compatible(name in STAND_INS)


def _loading(name: str) -> Callable[..., Any]:
    def load(self: Any, verbose: bool = True) -> Any:
        if name in STAND_INS:
            return StandIn(self.name, importlib.import_module(STAND_INS[name]))
        instead = _INSTEAD.get(name, "do it with torch's operators")
        raise RuntimeError(
            f"streamrace: DeepSpeed's compiled extension '{self.name}' ({name}) cannot be simulated: {instead}"
        )

    return load


def _compatible(answer: bool) -> Callable[..., bool]:
    def is_compatible(self: Any, verbose: bool = False) -> bool:
        return answer

    return is_compatible
