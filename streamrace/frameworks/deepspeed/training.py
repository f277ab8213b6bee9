"""Trains a model under stock DeepSpeed's engine, and names its streams and memory in the trace."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from streamrace.detectors.live.patches import listen
from streamrace.device.device import Device
from streamrace.device.nccl import ProcessGroupNCCL
from streamrace.frameworks.base import Probe
from streamrace.frameworks.deepspeed import hooks
from streamrace.frameworks.deepspeed.fixes import ALL_GATHER
from streamrace.frameworks.deepspeed.stock import deepspeed, groups


class DeepSpeedTrainer:
    """Trains by stock DeepSpeed's ``engine``. ``device``: the simulated GPU that it runs on; None on the CPU."""

    def __init__(self, engine: Any, device: Device | None) -> None:
        self.engine = engine
        self._device = device
        if device is not None:
            _name_streams(engine, device)

    def forward(self, batch: Mapping[str, Tensor]) -> Any:
        return self.engine(**batch)

    def evaluate(self, batch: Mapping[str, Tensor]) -> Any:
        self.engine.eval()
        with torch.no_grad():
            output = self.engine(**batch)
        self.engine.train()
        return output

    def backward(self, loss: Tensor) -> None:
        self.engine.backward(loss)

    def step(self) -> None:
        self.engine.step()

    def gradient_norm(self) -> Tensor | float | None:
        norm: Tensor | float | None = self.engine.get_global_grad_norm()
        return norm

    def watch(self, probe: Probe) -> None:
        hooks.watch_parameters(self.engine, probe)

    def label(self) -> None:
        """Name the memory of each parameter's partitions in the trace. To be called while they live."""
        if self._device is None:
            return
        for name, parameter in self.engine.module.named_parameters():
            for kind, attribute in (("primary", "ds_tensor"), ("secondary", "ds_secondary_tensor")):
                partition = getattr(parameter, attribute, None)
                if isinstance(partition, Tensor) and partition.numel():
                    self._device.label(partition, kind, name)
        if hasattr(self.engine.optimizer, "all_grad_tensors"):
            _label_whole_gradients(self.engine, self._device)

    def label_state(self) -> None:
        """Name the memory of optimizer state, gradients and buffers in the trace; to be repeated when there is more.

        ``stage3.py`` keeps fp32 partitions, a flat buffer of gradients and a bucket in which they are reduced,
        ``stage_1_and_2.py`` whole parameters in flat groups, which are padded, and one fp32 partition of each; Adam's
        moments are created in the first step.
        """
        if self._device is None:
            return
        engine, device = self.engine, self._device
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
            for state_name, value in optimizer.optimizer.state.get(flat, {}).items():
                if isinstance(value, Tensor):
                    device.label(value, "optimizer", f"{state_name} of group {number}")
        gradients = getattr(optimizer, "grad_partitions_flat_buffer", None)
        if gradients is not None:
            device.label(gradients, "gradient", "all")
        for bucket in getattr(optimizer, "ipg_buckets", {}).values():
            if isinstance(bucket.buffer, Tensor):
                device.label(bucket.buffer, "bucket", str(bucket.buffer.dtype))
        for name, buffer in engine.module.named_buffers():
            device.label(buffer, "buffer", name)

    def edit(self, probe: Probe) -> None:
        """Probe a parameter through ``GatheredParameters``, then double it the same way, as users do.

        The largest matrix of the model that is not an embedding. ``probe`` gets its values before the edit.
        """
        engine = self.engine
        names = {name: parameter.ds_numel for name, parameter in engine.module.named_parameters() if "emb" not in name}
        name = max(names, key=lambda candidate: (names[candidate] if "lm_head" not in candidate else 0, candidate))
        parameter = dict(engine.module.named_parameters())[name]
        with deepspeed.zero.GatheredParameters(parameter):
            probe(name, parameter.data)
        with deepspeed.zero.GatheredParameters(parameter, modifier_rank=0), torch.no_grad():
            if torch.distributed.get_rank() == 0:
                parameter.mul_(2)

    def partitions(self) -> Iterator[tuple[str, Tensor]]:
        """Yield this rank's final part of each parameter, and of the fp32 master copy.

        Without the padding behind a parameter's end, which nothing writes.
        """
        engine = self.engine
        names = {id(parameter): name for name, parameter in engine.module.named_parameters()}
        for parameter, name in ((p, names[id(p)]) for p in engine.module.parameters()):
            yield name, parameter.ds_tensor.detach()[: _covered(parameter)]
        optimizer = engine.optimizer
        for group, flat in zip(optimizer.fp16_groups, optimizer.fp32_partitioned_groups_flat, strict=True):
            offset = 0
            for parameter in group:
                yield f"fp32 {names[id(parameter)]}", flat.detach()[offset : offset + _covered(parameter)]
                offset += parameter.ds_tensor.ds_numel


def _name_streams(engine: Any, device: Device) -> None:
    """Name the streams that DeepSpeed created as in its code."""
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


def _label_whole_gradients(engine: Any, device: Device) -> None:
    """Label the gradients of ZeRO-1 and ZeRO-2 (``stage_1_and_2.py``), without a flat buffer between backward and step.

    They keep those of the parameters that begin or end in the rank's partition, whole, and give the step views of the
    partition's part; ZeRO-1 all gradients, until the last micro-batch. So whole blocks are labelled.
    """
    optimizer = engine.optimizer
    tensors = [parameter.grad for parameter in engine.module.parameters()]
    tensors += [getattr(parameter, "grad_accum", None) for parameter in engine.module.parameters()]
    for per_group in (optimizer.all_grad_tensors, optimizer.averaged_gradients):
        for group in per_group.values():
            tensors += group or ()
    gradients = [gradient for gradient in tensors if gradient is not None]
    for gradient in {gradient.untyped_storage().data_ptr(): gradient for gradient in gradients}.values():
        device.label_whole(gradient, "gradient", "all")


def _covered(parameter: Any) -> int:
    """Count the elements of the parameter that lie in this rank's partition."""
    size = parameter.ds_tensor.ds_numel
    start = torch.distributed.get_rank(parameter.ds_process_group) * size
    return int(min(max(parameter.ds_numel - start, 0), size))


def probe_copies(engine: Any) -> None:
    """Read each copy when it is written: the obvious check for the race, which hides it.

    The read waits for the stream that copies (DeepSpeed issue 5059: "a NaN check after the partition hides it").
    """

    def probing(parameter: Any) -> Callable[..., None]:
        def probe(*_: Any, **__: Any) -> None:
            secondary = parameter.ds_secondary_tensor
            if secondary is not None:
                secondary.isfinite().all().item()

        return probe

    for parameter in engine.module.parameters():
        listen(parameter, "partition", after=probing(parameter))
