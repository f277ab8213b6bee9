"""Modules that need more than torch's device to run: who supplies it, when a program imports them.

Only names stand here. Nothing of a framework, nor of its adapter, is imported before the program does it.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType

ADAPTERS = {
    "deepspeed.accelerator.cuda_accelerator": "streamrace.frameworks.deepspeed",
    "streamrace.detectors.live.ops": "streamrace.device.wholes",
    "transformers.utils.import_utils": "streamrace.frameworks.listing",
}
"""Modules of frameworks, and the adapter whose ``adapt(module)`` is called once the module has been executed."""

BEFORE = {"deepspeed": "streamrace.frameworks.deepspeed"}
"""Packages whose adapter's ``prepare()`` is called before anything of theirs is executed: what old releases need."""

POSTPONED = {"deepspeed.compile.backend": "streamrace.frameworks.deepspeed.postponed"}
"""Modules that are imported without being used, and who executes them when they are: its ``Postponed(loader)``."""

OPERATORS = {
    "detectors": "streamrace.detectors.live.ops",
    "stream_races": "streamrace.frameworks.deepspeed.quantizer",
    "stream_races_optimizers": "streamrace.frameworks.deepspeed.fused_optimizers",
}
"""Namespaces of operators that may stand in a recording beside torch's own, and the module that defines them."""


class _Finder(MetaPathFinder):
    """Finds the modules of :data:`ADAPTERS`, :data:`BEFORE`, :data:`POSTPONED` as Python would, for their adapters."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        before, after, later = BEFORE.get(fullname), ADAPTERS.get(fullname), POSTPONED.get(fullname)
        spec = PathFinder.find_spec(fullname, path, target) if before or after or later else None
        if spec is None or spec.loader is None:
            return None
        if later:
            spec.loader = importlib.import_module(later).Postponed(spec.loader)
            return spec
        execute = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            if before:
                importlib.import_module(before).prepare()
            execute(module)
            if after:
                importlib.import_module(after).adapt(module)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


FORMER = {"detectors::look.default": "detectors::probe.default"}
"""Operators of recordings of before, by the names they had then."""


def define(namespace: str) -> bool:
    """Have the operators of one of :data:`OPERATORS` there. False: of nobody known."""
    if namespace not in OPERATORS:
        return False
    importlib.import_module(OPERATORS[namespace])
    return True


def install() -> None:
    """Watch for them from now on. What was imported before is adapted at once."""
    for name, adapter in ADAPTERS.items():
        if name in sys.modules:
            importlib.import_module(adapter).adapt(sys.modules[name])
    sys.meta_path.insert(0, _Finder())
