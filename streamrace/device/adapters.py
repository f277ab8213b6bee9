"""Lists the modules that need more than torch's device to run, and the adapters that supply the rest.

Only names are listed: neither a framework nor its adapter is imported before the program imports the framework.
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
    "deepspeed.runtime.zero.stage3": "streamrace.frameworks.deepspeed.limits",
    "deepspeed.runtime.zero.stage_1_and_2": "streamrace.frameworks.deepspeed.limits",
    "streamrace.detectors.live.ops": "streamrace.device.opaque_ops",
    "torch.distributed.fsdp.fully_sharded_data_parallel": "streamrace.frameworks.data_parallel",
    "torch.nn.parallel.distributed": "streamrace.frameworks.data_parallel",
    "transformers.utils.import_utils": "streamrace.frameworks.listing",
    "triton.runtime.interpreter": "streamrace.frameworks.kernel_races",
}
"""Framework modules, and the adapter whose ``adapt(module)`` is called once the module has been executed."""

BEFORE = {"deepspeed": "streamrace.frameworks.deepspeed"}
"""Packages whose adapter's ``prepare()`` is called before any of their code runs (needed by old releases)."""

POSTPONED = {"deepspeed.compile.backend": "streamrace.frameworks.deepspeed.lazy_compiler"}
"""Modules imported without being used, and the module whose ``Postponed(loader)`` executes them on first use."""

OPERATORS = {
    "detectors": "streamrace.detectors.live.ops",
    "stream_races": "streamrace.frameworks.deepspeed.quantizer",
    "stream_races_optimizers": "streamrace.frameworks.deepspeed.fused_optimizers",
}
"""Namespaces of operators that a recording may contain in addition to torch's own, and the module defining them."""


class _Finder(MetaPathFinder):
    """A finder that loads the modules of :data:`ADAPTERS`, :data:`BEFORE` and :data:`POSTPONED` with their adapters."""

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
"""Operators in older recordings, and their present names."""


def define(namespace: str) -> bool:
    """Define the operators of a namespace of :data:`OPERATORS`. Return False for an unknown namespace."""
    if namespace not in OPERATORS:
        return False
    importlib.import_module(OPERATORS[namespace])
    return True


def install() -> None:
    """Start watching for the listed modules. Modules already imported are adapted at once."""
    for name, adapter in ADAPTERS.items():
        if name in sys.modules:
            importlib.import_module(adapter).adapt(sys.modules[name])
    sys.meta_path.insert(0, _Finder())
