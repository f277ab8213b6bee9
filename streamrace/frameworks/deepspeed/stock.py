"""Imports DeepSpeed as it was installed, after supplying what an old release needs to start."""

from __future__ import annotations

from streamrace.frameworks.deepspeed import old_releases
from streamrace.frameworks.deepspeed.releases import installed

old_releases.supply(installed() or "0")

import deepspeed  # noqa: E402 - after what it needs
import deepspeed.ops.op_builder  # noqa: E402
from deepspeed.accelerator import set_accelerator  # noqa: E402
from deepspeed.accelerator.cpu_accelerator import CPU_Accelerator  # noqa: E402
from deepspeed.runtime.zero.partitioned_param_coordinator import PartitionedParameterCoordinator  # noqa: E402
from deepspeed.utils import groups, nvtx  # noqa: E402

__all__ = ["CPU_Accelerator", "PartitionedParameterCoordinator", "deepspeed", "groups", "nvtx", "set_accelerator"]
