"""Pretends another processor: whoever asks what this one can do, or how many cores there are, is told otherwise.

``make test-other-processor`` puts this folder on ``PYTHONPATH``, where Python finds it in every process that a test
starts, before anything else is imported. What the libraries under torch ask in C it tells them by their own variables
(``ATEN_CPU_CAPABILITY`` and its like, see the Makefile); the rest is here.
"""

from __future__ import annotations

import importlib.abc
import importlib.util
import os
import sys
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

CORES = 3 if os.cpu_count() == 1 else 1


class Contrary:
    """A function that answers no for yes, and is else the one that it stands for."""

    def __init__(self, asked: Callable[[], bool]) -> None:
        self._asked = asked

    def __call__(self) -> bool:
        return not self._asked()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._asked, name)


def pretend(torch: Any) -> None:
    for name in ("_is_mkldnn_fp16_supported", "_is_mkldnn_bf16_supported"):
        setattr(torch.ops.mkldnn, name, Contrary(getattr(torch.ops.mkldnn, name)))
    for name in dir(torch.cpu):
        if name.startswith("_is_"):
            setattr(torch.cpu, name, Contrary(getattr(torch.cpu, name)))


class WhenTorchComes(importlib.abc.MetaPathFinder):
    """torch takes seconds, and some processes are tested to do without it: it is not imported for this."""

    def find_spec(self, name: str, path: Any, target: ModuleType | None = None) -> ModuleSpec | None:
        if name != "torch":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            load = spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                load(module)
                pretend(module)

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


os.cpu_count = lambda: CORES
if hasattr(os, "sched_getaffinity"):
    os.sched_getaffinity = lambda _: set(range(CORES))
sys.meta_path.insert(0, WhenTorchComes())
