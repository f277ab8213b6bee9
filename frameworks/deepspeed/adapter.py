"""What is replaced of DeepSpeed's internals at run time. Written for 0.19.8, tried with those in ``releases.KNOWN``.

Stock DeepSpeed runs on the simulated GPU with its own ``CUDA_Accelerator``, and beside it on the CPU, through its own
interface (``deepspeed.accelerator.set_accelerator``). Nothing of DeepSpeed is edited. What is replaced at run time, and
why:

* ``PartitionedParameterCoordinator.fetch_sub_module`` is called through a wrapper that looks at the
  parameters *after* it returns (:func:`watch_parameters`): the values that training is about to use.
  The look takes no time, issues nothing and orders nothing.
* DeepSpeed's quantizer (qwZ, qgZ) is CUDA code without a CPU build: :mod:`frameworks.deepspeed.quantizer` stands in. An
  accelerator says which builder there is (``get_op_builder``), but ``deepspeed.ops.op_builder.QuantizerBuilder`` asks
  the accelerator that DeepSpeed finds while it is imported, and ``set_accelerator`` asks no one again: the name is
  set anew with the accelerator (:func:`_use`).
* Single synchronisations are taken out by :class:`simgpu.overrides.Override` (frameworks.deepspeed.fixes),
  by the place they are called from; DeepSpeed's function runs as it is.
* A fix that does not stand where DeepSpeed's own does is called from a wrapper around one function of DeepSpeed,
  which runs as it is (:func:`put`; which function, and why that one, is said there).
"""

from __future__ import annotations

import functools
import importlib
import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import Any

import torch
from torch import Tensor, nn

from frameworks.deepspeed import needs, quantizer
from frameworks.deepspeed.fixes import ALL_GATHER, Fix, Ordering, Where
from frameworks.deepspeed.releases import installed
from simgpu.device import Device
from simgpu.nccl import ProcessGroupNCCL

needs.supply(installed() or "0")

import deepspeed  # noqa: E402 - after what it needs
import deepspeed.ops.op_builder  # noqa: E402
from deepspeed.accelerator import set_accelerator  # noqa: E402
from deepspeed.accelerator.cpu_accelerator import CPU_Accelerator  # noqa: E402
from deepspeed.runtime.zero.partitioned_param_coordinator import PartitionedParameterCoordinator  # noqa: E402
from deepspeed.utils import groups  # noqa: E402

VERSION: str = deepspeed.__version__
initialize = deepspeed.initialize

# Frames that only pass a call on: the place that matters is their caller.
PASSING_FILES = (
    "deepspeed/utils/nvtx.py",
    "deepspeed/comm/comm.py",
    "deepspeed/comm/torch.py",
    "deepspeed/runtime/compiler.py",
    "deepspeed/accelerator/cuda_accelerator.py",
    "frameworks/deepspeed/adapter.py",
    "detectors/live/patches.py",
)


class QuantizerBuilder:
    """What DeepSpeed asks for its quantizer: nothing is built."""

    def load(self, verbose: bool = True) -> Any:
        return quantizer


class PlainAccelerator(CPU_Accelerator):
    """DeepSpeed's CPU accelerator, with a quantizer, and without its shared-memory collective.

    That one is compiled at the first start (half a minute) and only serves inference. What depends on the machine is
    answered here, the same everywhere: the number of devices (``numactl`` counts memory nodes), and the types, which
    torch computes with on every processor, if need be in fp32; DeepSpeed asks whether the processor has instructions
    of its own for fp16, and refuses it without.
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


def use_simulated() -> str:
    """Let DeepSpeed run on this process's simulated GPU, with its own CUDA accelerator. Before
    ``deepspeed.initialize``.

    Gives the name of torch's backend for its collectives.
    """
    from deepspeed.accelerator.cuda_accelerator import CUDA_Accelerator

    _use(CUDA_Accelerator())
    return "nccl"


def use_plain() -> None:
    """Let DeepSpeed run on the CPU with gloo: the reference."""
    _use(PlainAccelerator())


def _use(accelerator: Any) -> None:
    set_accelerator(accelerator)
    deepspeed.ops.op_builder.QuantizerBuilder = accelerator.get_op_builder("QuantizerBuilder")


def put(fix: Fix, device: Device) -> None:
    """Put ``fix`` in its place, for as long as this process lives. Before ``deepspeed.initialize``.

    After each copy it stands where stock DeepSpeed's own synchronisation stands: an override. Elsewhere one function is
    wrapped, of :data:`frameworks.deepspeed.releases.PINNED`:

    * *after each module*, behind ``PartitionedParameterCoordinator.release_sub_module``: there a module's parameters
      are partitioned, in forward and in backward. What is partitioned elsewhere (when the model is made, at the end of
      ``GatheredParameters``, by ``release_and_reset_all``) belongs to no module's pass.
    * *at the turn*, in front of ``DeepSpeedZeroOptimizer_Stage3.backward_prologue``: it runs once in each backward
      pass, before the first module's, whether the program calls ``engine.backward`` or ``loss.backward``.
    * *at each fetch*, in front of the coordinator's ``__all_gather_params_``: fetches and prefetches both come through
      it, and it is the last place where the current stream is still the program's; inside, the all-gather stream is.
      It is told only of parameters that will be gathered from their secondary partitions, by the conditions that stand
      in it.
    * for events recorded behind the copies and waited for at the fetch, ``Init._partition_param_sec`` too: it knows
      which parameter was copied.
    """
    from deepspeed.runtime.zero.partition_parameters import Init, ZeroParamStatus
    from deepspeed.runtime.zero.stage3 import DeepSpeedZeroOptimizer_Stage3

    ordering = Ordering(fix, device)
    device.overrides.extend(ordering.overrides)

    def fetching(coordinator: Any, parameters: Any, *rest: Any, **more: Any) -> None:
        read = [
            parameter
            for parameter in parameters
            if parameter.ds_status == ZeroParamStatus.NOT_AVAILABLE and parameter.ds_secondary_tensor is not None
        ]
        if read:
            ordering.fetching(read)

    if fix.where is Where.MODULE:
        _wrap(PartitionedParameterCoordinator, "release_sub_module", after=lambda *_, **__: ordering.released())
    if fix.where is Where.TURN:
        _wrap(DeepSpeedZeroOptimizer_Stage3, "backward_prologue", before=lambda *_, **__: ordering.turned())
    if fix.where is Where.FETCH:
        _wrap(PartitionedParameterCoordinator, "_PartitionedParameterCoordinator__all_gather_params_", before=fetching)
    if fix is Fix.COPY_EVENT:
        _wrap(Init, "_partition_param_sec", after=lambda _, parameter, *__, **___: ordering.partitioned(parameter))


def _wrap(
    owner: type, name: str, *, before: Callable[..., None] | None = None, after: Callable[..., None] | None = None
) -> None:
    original = getattr(owner, name)

    @functools.wraps(original)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        if before is not None:
            before(*args, **kwargs)
        result = original(*args, **kwargs)
        if after is not None:
            after(*args, **kwargs)
        return result

    setattr(owner, name, wrapped)


# What an engine imports only when it is made.
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
    """Do once, in the process that will be forked, what ``deepspeed.initialize`` would do in each rank."""
    import torch._inductor.compile_fx  # noqa: F401 - seconds, for DeepSpeed's Muon optimizer

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "simgpu: torch.compile")  # DeepSpeed compiles a function that nobody calls
        for module in _LATE:
            with suppress(ImportError):  # old releases do not have them all
                importlib.import_module(module)
    use_plain()
    deepspeed.ops.__compatible_ops__  # noqa: B018 - asks the compiler, and remembers


def sharded(config: dict[str, Any]) -> AbstractContextManager[Any]:
    """Where a model is made so that each parameter is partitioned at once (ZeRO-3); elsewhere it does nothing.

    Not everything that ``deepspeed.initialize`` takes concerns the partitioning: the optimizer is left out.
    """
    zero = config.get("zero_optimization", {})
    if zero.get("stage") != 3:
        return nullcontext()
    told = {key: value for key, value in config.items() if key not in ("optimizer", "scheduler")}
    return deepspeed.zero.Init(config_dict_or_path=told)  # type: ignore[no-any-return]


def name_streams(engine: Any, device: Device) -> None:
    """Give the streams that DeepSpeed made the names under which its code knows them."""
    optimizer = engine.optimizer
    offload = getattr(optimizer, "parameter_offload", None)
    gather = getattr(offload, "_DeepSpeedZeRoOffload__allgather_stream", None)
    # The first is ZeRO-3's, the second ZeRO-1's and -2's.
    reduce = getattr(optimizer, "reduce_and_partition_stream", getattr(optimizer, "reduction_stream", None))
    for stream, name in ((gather, ALL_GATHER), (reduce, "reduce")):
        if stream is not None and stream != device.default_stream():
            device.name_stream(stream, name)
    process_groups = {
        "nccl world": torch.distributed.group.WORLD,
        "nccl data-parallel": groups._get_data_parallel_group(),
        "nccl hpz": groups._get_zero_param_intra_parallel_group(),
    }
    for name, group in process_groups.items():
        if isinstance(group, ProcessGroupNCCL):
            group.rename(name)


def label_memory(engine: Any, device: Device) -> None:
    """Tell the trace which memory holds which parameter's partitions. Call it while they live."""
    for name, parameter in engine.module.named_parameters():
        for kind, attribute in (("primary", "ds_tensor"), ("secondary", "ds_secondary_tensor")):
            partition = getattr(parameter, attribute, None)
            if isinstance(partition, Tensor) and partition.numel():
                device.label(partition, kind, name)
    if hasattr(engine.optimizer, "all_grad_tensors"):
        _label_whole_gradients(engine, device)


def _label_whole_gradients(engine: Any, device: Device) -> None:
    """ZeRO-1 and ZeRO-2 (``stage_1_and_2.py``) have no flat buffer of gradients between backward and step.

    They keep those of the parameters that begin or end in the rank's partition, whole, and give the step views of the
    partition's part; ZeRO-1 all gradients, until the last micro-batch. So it is blocks that are labelled.
    """
    optimizer = engine.optimizer
    kept = [parameter.grad for parameter in engine.module.parameters()]
    kept += [getattr(parameter, "grad_accum", None) for parameter in engine.module.parameters()]
    for held in (optimizer.all_grad_tensors, optimizer.averaged_gradients):
        for group in held.values():
            kept += group or ()
    gradients = [gradient for gradient in kept if gradient is not None]
    for gradient in {one.untyped_storage().data_ptr(): one for one in gradients}.values():
        device.label_whole(gradient, "gradient", "all")


def label_state(engine: Any, device: Device) -> None:
    """Tell the trace which memory holds the optimizer's state, gradients and buffers. Again when there is more of it.

    ``stage3.py`` keeps fp32 partitions, a flat buffer of gradients and a bucket in which they are reduced,
    ``stage_1_and_2.py`` whole parameters in flat groups, which are padded, and one fp32 partition of each; Adam's
    moments come with the first step.
    """
    optimizer = engine.optimizer
    for number, group in enumerate(getattr(optimizer, "bit16_groups_flat", ())):
        device.label(group, "primary", f"group {number}")
    for name, parameter in engine.module.named_parameters():
        if not hasattr(parameter, "ds_tensor") and parameter.numel():
            device.label(parameter.data, "primary", name)
    master = getattr(optimizer, "fp32_partitioned_groups_flat", None) or getattr(
        optimizer, "single_partition_of_fp32_groups", []
    )
    for number, flat in enumerate(master):
        device.label(flat.detach(), "master", f"group {number}")
        if flat.grad is not None:
            device.label(flat.grad, "gradient", f"group {number}")
        for what, value in optimizer.optimizer.state.get(flat, {}).items():
            if isinstance(value, Tensor):
                device.label(value, "optimizer", f"{what} of group {number}")
    gradients = getattr(optimizer, "grad_partitions_flat_buffer", None)
    if gradients is not None:
        device.label(gradients, "gradient", "all")
    for bucket in getattr(optimizer, "ipg_buckets", {}).values():
        if isinstance(bucket.buffer, Tensor):
            device.label(bucket.buffer, "bucket", str(bucket.buffer.dtype))
    for name, buffer in engine.module.named_buffers():
        device.label(buffer, "buffer", name)


def watch_parameters(engine: Any, look: Callable[[str, Tensor], None]) -> None:
    """Call ``look(name, parameter)`` for each parameter at each fetch, when it is ready for use.

    ``deepspeed/runtime/zero/partitioned_param_coordinator.py: fetch_sub_module`` returns when the
    current stream is ordered after the all-gather; what the parameter holds then is what training uses.
    """
    names = {id(parameter): name for name, parameter in engine.module.named_parameters()}
    original = PartitionedParameterCoordinator.fetch_sub_module

    @functools.wraps(original)
    def fetch_sub_module(self: Any, current_submodule: nn.Module, forward: bool) -> None:
        original(self, current_submodule, forward)
        for parameter in current_submodule.parameters(recurse=False):
            name = names.get(id(parameter))
            if name is not None:
                look(name, parameter.data)

    PartitionedParameterCoordinator.fetch_sub_module = fetch_sub_module


def edit(engine: Any, look: Callable[[str, Tensor], None]) -> None:
    """Look at a parameter through ``GatheredParameters``, then double it the same way, as users do.

    The largest matrix of the model that is not an embedding. What ``look`` gets are its values before.
    """
    names = {name: parameter.ds_numel for name, parameter in engine.module.named_parameters() if "emb" not in name}
    name = max(names, key=lambda one: (names[one] if "lm_head" not in one else 0, one))
    parameter = dict(engine.module.named_parameters())[name]
    with deepspeed.zero.GatheredParameters(parameter):
        look(name, parameter.data)
    with deepspeed.zero.GatheredParameters(parameter, modifier_rank=0), torch.no_grad():
        if torch.distributed.get_rank() == 0:
            parameter.mul_(2)


def partitions(engine: Any) -> Iterator[tuple[str, Tensor]]:
    """What this rank holds at the end: its part of each parameter, and of the fp32 master copy.

    Without the padding behind a parameter's end, which nothing writes.
    """
    names = {id(parameter): name for name, parameter in engine.module.named_parameters()}
    for parameter, name in ((p, names[id(p)]) for p in engine.module.parameters()):
        yield name, parameter.ds_tensor.detach()[: _covered(parameter)]
    optimizer = engine.optimizer
    for group, flat in zip(optimizer.fp16_groups, optimizer.fp32_partitioned_groups_flat, strict=True):
        offset = 0
        for parameter in group:
            yield f"fp32 {names[id(parameter)]}", flat.detach()[offset : offset + _covered(parameter)]
            offset += parameter.ds_tensor.ds_numel


def _covered(parameter: Any) -> int:
    """Elements of the parameter that lie in this rank's partition."""
    size = parameter.ds_tensor.ds_numel
    start = torch.distributed.get_rank(parameter.ds_process_group) * size
    return int(min(max(parameter.ds_numel - start, 0), size))


def bits(tensor: Tensor) -> bytes:
    """The tensor's bytes, in row order."""
    return bytes(tensor.detach().contiguous().view(-1).view(torch.uint8).numpy())
