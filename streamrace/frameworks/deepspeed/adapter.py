"""Adapts stock DeepSpeed to :class:`Framework`. Written for 0.19.8, tried with those in ``releases.KNOWN``.

It runs on the simulated GPU with its own ``CUDA_Accelerator``, or on the CPU, through its own interface
(``deepspeed.accelerator.set_accelerator``). DeepSpeed is not edited. Functions called through listeners are in
:mod:`.hooks`, and accesses to an engine's internals in :mod:`.training`.

DeepSpeed's quantizer (qwZ, qgZ) is CUDA code without a CPU build: :mod:`streamrace.frameworks.deepspeed.quantizer`
replaces it. An accelerator selects the builder (``get_op_builder``), but ``deepspeed.ops.op_builder.QuantizerBuilder``
is taken from the accelerator found during DeepSpeed's import, and ``set_accelerator`` does not repeat that: the name is
set again with the accelerator (:func:`start`).
"""

from __future__ import annotations

import importlib
import os
import warnings
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import Any

import torch
from torch import nn

from streamrace.device.device import Device
from streamrace.frameworks.deepspeed import quantizer
from streamrace.frameworks.deepspeed.grafts import graft as graft
from streamrace.frameworks.deepspeed.hooks import put as put
from streamrace.frameworks.deepspeed.stock import CPU_Accelerator, deepspeed, nvtx, set_accelerator
from streamrace.frameworks.deepspeed.training import DeepSpeedTrainer
from streamrace.frameworks.deepspeed.training import probe_copies as probe_copies

VERSION: str = deepspeed.__version__

PASSING_FILES: tuple[str, ...] = (
    "streamrace/frameworks/deepspeed/hooks.py",
    "streamrace/frameworks/deepspeed/grafts.py",
    "detectors/live/patches.py",
)
"""Files whose frames only pass a call on: the relevant place is their caller."""


class QuantizerBuilder:
    """DeepSpeed's builder of its quantizer: nothing is built."""

    def load(self, verbose: bool = True) -> Any:
        return quantizer


class PlainAccelerator(CPU_Accelerator):
    """DeepSpeed's CPU accelerator, with a quantizer, and without its shared-memory collective.

    That collective is compiled at the first start (half a minute) and only serves inference. Answers that depend on the
    machine are the same everywhere: the number of devices (``numactl`` counts memory nodes), and the dtypes, which
    torch computes with on every processor, if need be in fp32; DeepSpeed refuses fp16 unless the processor has its own
    instructions for it.
    """

    def __init__(self) -> None:
        super().__init__()
        self._communication_backend_name = "gloo"  # old releases: oneCCL, whatever is installed

    def get_op_builder(self, class_name: str) -> Any:
        if class_name == "QuantizerBuilder":
            return QuantizerBuilder
        compiled = class_name in ("ShareMemCommBuilder", "CCLCommBuilder")
        return super().get_op_builder("NotImplemented" if compiled else class_name)

    def device_count(self) -> int:
        return int(os.environ.get("LOCAL_SIZE", "1"))

    def is_fp16_supported(self) -> bool:
        return True

    def is_bf16_supported(self) -> bool:
        return True

    def supported_dtypes(self) -> list[torch.dtype]:
        return [torch.float, torch.bfloat16, torch.half]


def start(*, simulated: bool) -> str:
    """Let DeepSpeed run on this process's simulated GPU, or on the CPU with gloo. Before ``initialize``.

    Returns the name of torch's backend for its collectives.
    """
    accelerator: Any
    if simulated:
        from deepspeed.accelerator.cuda_accelerator import CUDA_Accelerator

        accelerator = CUDA_Accelerator()
        # DeepSpeed's own switch for a profiler's ranges, two calls around each of its functions.
        nvtx.enable_nvtx = False
    else:
        accelerator = PlainAccelerator()
    set_accelerator(accelerator)
    deepspeed.ops.op_builder.QuantizerBuilder = accelerator.get_op_builder("QuantizerBuilder")
    return "nccl" if simulated else "gloo"


def initialize(*, model: nn.Module, optimizer: torch.optim.Optimizer, config: dict[str, Any]) -> Any:
    """Return DeepSpeed's engine of this model."""
    return deepspeed.initialize(model=model, optimizer=optimizer, config=config)[0]


def trainer(engine: Any, device: Device | None) -> DeepSpeedTrainer:
    """Return the trainer of ``engine``, with its streams named."""
    return DeepSpeedTrainer(engine, device)


def shape_of(parameter: nn.Parameter) -> torch.Size:
    """Return the shape of the whole parameter, even if only a partition of it is here."""
    shape: torch.Size = getattr(parameter, "ds_shape", parameter.shape)
    return shape


# Modules that an engine imports only when it is created.
_LATE = (
    "deepspeed.comm.mori",
    "deepspeed.module_inject.auto_ep_layer",
    "deepspeed.runtime.superoffload.superoffload_stage3",
    "deepspeed.runtime.zero.muon.muon_optimizer",
    "deepspeed.runtime.zero.muon.original_muon",
    "torch._subclasses.schema_check_mode",
    "torch.profiler._cupti_monitor",
)


def warm_up() -> None:
    """Do, once, in the process that will be forked, work that ``deepspeed.initialize`` would repeat in each rank."""
    with warnings.catch_warnings():
        warnings.filterwarnings(
            "ignore", "streamrace: torch.compile"
        )  # DeepSpeed compiles a function that nobody calls
        for module in _LATE:
            with suppress(ImportError):  # old releases lack some
                importlib.import_module(module)
    start(simulated=False)
    deepspeed.ops.__compatible_ops__  # noqa: B018 - calls the compiler, and caches


def sharded(config: dict[str, Any]) -> AbstractContextManager[Any]:
    """Return a context that partitions each parameter as a model is built (ZeRO-3); without ZeRO-3 it does nothing.

    Settings of ``deepspeed.initialize`` that do not concern partitioning are left out: optimizer and scheduler. The
    process group is created before, as in transformers: else the batch sizes are checked as those of one rank.
    """
    zero = config.get("zero_optimization", {})
    if zero.get("stage") != 3:
        return nullcontext()
    deepspeed.init_distributed()
    passed = {key: value for key, value in config.items() if key not in ("optimizer", "scheduler")}
    return deepspeed.zero.Init(config_dict_or_path=passed)  # type: ignore[no-any-return]
