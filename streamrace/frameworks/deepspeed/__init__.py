"""Runs stock DeepSpeed on the simulated GPU, with its own ``CUDA_Accelerator``. Tried with 0.19.8.

DeepSpeed is not edited. Its needs beyond torch's device are supplied when a program imports it
(:mod:`streamrace.device.adapters`):

* its compiled extensions (``op_builder``) have stand-ins in torch operations, or are refused by name
  (:mod:`streamrace.frameworks.deepspeed.builders`);
* a dry run answers DeepSpeed's checks whether all went well (:data:`streamrace.device.dry.TRUSTED`).

The trace shows whether hpZ's secondary partitions were ever read
(:mod:`streamrace.frameworks.deepspeed.secondary_reads`).

With ``DS_ACCELERATOR=cpu`` DeepSpeed does not use the GPU, and nothing is supplied.
"""

from __future__ import annotations

import os
from types import ModuleType

# DeepSpeed reads values to check for overflow, and for the norm: a dry run answers these reads.
_ALL_WENT_WELL = {"deepspeed/": 1.0, "streamrace/frameworks/deepspeed/": 1.0}


def prepare() -> None:
    """Supply the names that the release about to be imported needs, and that no longer exist."""
    from streamrace.frameworks.deepspeed import old_releases
    from streamrace.frameworks.deepspeed.releases import installed

    old_releases.supply(installed() or "0", cpu=os.environ.get("DS_ACCELERATOR") == "cpu")


def adapt(module: ModuleType) -> None:
    """Supply the needs of DeepSpeed's ``module``, which has just been imported."""
    from streamrace.device.dry import TRUSTED
    from streamrace.frameworks.deepspeed import builders, old_releases

    TRUSTED.update(_ALL_WENT_WELL)
    builders.supply(module.CUDA_Accelerator)
    old_releases.constructors(module.CUDA_Accelerator)
