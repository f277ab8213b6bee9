"""Attaches fixes and probes to functions of DeepSpeed, which are called through a listener, and run unchanged.

DeepSpeed is not edited. :func:`streamrace.detectors.live.patches.listen` calls a listener before or after a function; a
:class:`streamrace.device.overrides.Override` removes a single synchronisation, by its call site.
"""

from __future__ import annotations

from typing import Any

from torch import nn

from streamrace.detectors.live.patches import listen
from streamrace.device.device import Device
from streamrace.device.overrides import Override
from streamrace.frameworks.base import Probe
from streamrace.frameworks.deepspeed.fixes import Fix
from streamrace.frameworks.deepspeed.stock import PartitionedParameterCoordinator


def put(fix: Fix, device: Device) -> None:
    """Put ``fix`` in its place, for as long as this process lives. Before ``deepspeed.initialize``.

    ``after_copy`` takes the place of stock DeepSpeed's own synchronisation: an override. For each other hook one
    function is listened to, of :data:`streamrace.frameworks.deepspeed.releases.PINNED`:

    * ``after_partition``, behind ``Init._partition_param_sec``, which has the copied parameter as an argument.
    * ``after_release``, behind ``PartitionedParameterCoordinator.release_sub_module``: there a module's parameters
      are partitioned, in forward and in backward. Parameters partitioned elsewhere (in the model's creation, at
      the end of ``GatheredParameters``, by ``release_and_reset_all``) belong to no module's pass.
    * ``at_turn``, in front of ``DeepSpeedZeroOptimizer_Stage3.backward_prologue``: it runs once in each backward
      pass, before the first module's, whether the program calls ``engine.backward`` or ``loss.backward``.
    * ``at_fetch``, in front of the coordinator's ``__all_gather_params_``: fetches and prefetches both come through
      it, and it is the last place where the current stream is still the program's; inside, the all-gather stream is.
      The fix gets only parameters that will be gathered from their secondary partitions, by the conditions of that
      function.
    """
    from deepspeed.runtime.zero.partition_parameters import Init, ZeroParamStatus
    from deepspeed.runtime.zero.stage3 import DeepSpeedZeroOptimizer_Stage3

    ordering = fix.ordering(device)
    if not ordering.stock:
        copied = Override("stream.synchronize", "_partition_param_sec", "partition_parameters.py", ordering.after_copy)
        device.overrides.append(copied)

    def fetching(coordinator: Any, parameters: Any, *arguments: Any, **more: Any) -> None:
        read = [
            parameter
            for parameter in parameters
            if parameter.ds_status == ZeroParamStatus.NOT_AVAILABLE and parameter.ds_secondary_tensor is not None
        ]
        if read:
            ordering.at_fetch(read)

    if ordering.overrides("after_partition"):
        listen(Init, "_partition_param_sec", after=lambda _, init, param, *__, **___: ordering.after_partition(param))
    if ordering.overrides("after_release"):
        listen(PartitionedParameterCoordinator, "release_sub_module", after=lambda *_, **__: ordering.after_release())
    if ordering.overrides("at_turn"):
        listen(DeepSpeedZeroOptimizer_Stage3, "backward_prologue", before=lambda *_, **__: ordering.at_turn())
    if ordering.overrides("at_fetch"):
        listen(PartitionedParameterCoordinator, "_PartitionedParameterCoordinator__all_gather_params_", before=fetching)


def watch_parameters(engine: Any, probe: Probe) -> None:
    """Call ``probe(name, parameter)`` for each parameter at each fetch, when it is ready for use.

    ``PartitionedParameterCoordinator.fetch_sub_module`` (``deepspeed/runtime/zero/partitioned_param_coordinator.py``)
    returns when the current stream is ordered after the all-gather; training uses the parameter's values of that
    moment.
    """
    names = {id(parameter): name for name, parameter in engine.module.named_parameters()}

    def fetched(_: Any, coordinator: Any, current_submodule: nn.Module, *arguments: Any, **more: Any) -> None:
        for parameter in current_submodule.parameters(recurse=False):
            name = names.get(id(parameter))
            if name is not None:
                probe(name, parameter.data)

    listen(PartitionedParameterCoordinator, "fetch_sub_module", after=fetched)
