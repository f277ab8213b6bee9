"""Adapts the simulated GPU to other versions of torch: supplies functions that they lack or name differently.

The device is written for torch 2.13. This module and ``csrc/versions.h`` contain the differences, and nothing else: the
order of work is that of each torch. Tried versions: :mod:`streamrace.device.torches.releases`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from streamrace.device import streams
from streamrace.device.library import functions
from streamrace.device.torches import releases

_STATISTICS = ("allocation", "segment", "active", "inactive_split", "allocated_bytes", "reserved_bytes", "active_bytes",
               "inactive_split_bytes", "requested_bytes")  # fmt: skip
_COUNTS = ("num_alloc_retries", "num_ooms", "num_sync_all_streams", "num_device_alloc", "num_device_free")
_POOLS = ("all", "small_pool", "large_pool")
_NUMBERS = ("current", "peak", "allocated", "freed")
_CUDA = 1  # c10::DeviceType
_CURRENT_STREAM: list[str] = []  # non-empty since 2.8: the attribute that all options have
_GLOO_FOLLOWS = hasattr(torch._C, "_accelerator_getStream")  # gloo follows it since 2.6, when this appeared
NCCLS = ("ProcessGroupNCCL", "ProcessGroupNCCL2", "ProcessGroupNCCLLazy")
"""Classes of NCCL's groups. ``nccl`` is the second since 2.15; it issues on the caller's stream like the first."""
_EMPTY, _PEAKS, _ACCUMULATED = range(3)


def install() -> None:
    """Give ``torch._C`` the functions that it lacks. Called once, before anything else of the simulated GPU."""
    releases.tell(torch.__version__)
    c: Any = torch._C
    for name, function in _LACKING.items():
        if not hasattr(c, name):
            setattr(c, name, function)
    if torch.distributed.is_available():
        _options()
    if hasattr(torch, "_streambase"):  # before 2.6: classes for which torch._dynamo checks
        torch._streambase._StreamBase.register(streams.Stream)
        torch._streambase._EventBase.register(streams.Event)


def of_gloo() -> AbstractContextManager[Any]:
    """Return the context for creating gloo's tensors. Before 2.6 gloo's threads miss the caller's inference mode."""
    return nullcontext() if _GLOO_FOLLOWS else torch.inference_mode(False)


def on_current_stream(options: Any) -> bool:
    """Check whether a collective runs on the issuing stream. Before 2.8 each runs on NCCL's own, and is waited for."""
    blocks = os.environ.get("TORCH_NCCL_BLOCKING_WAIT") == "1"
    return bool(_CURRENT_STREAM) and not options.asyncOp and not blocks


def record(options: Any, tensors: Sequence[torch.Tensor], stream: torch.Stream) -> None:
    """Record NCCL's own stream for its tensors, before 2.8, unless the caller waits or the environment forbids it."""
    avoided = not options.asyncOp or os.environ.get("TORCH_NCCL_AVOID_RECORD_STREAMS") == "1"
    for tensor in () if _CURRENT_STREAM or avoided else tensors:
        tensor.record_stream(stream)


def of_group(kind: Any, c10d: Any) -> None:
    """Give our process group what older versions need: a shutdown method, and a value in place of a property.

    Since 2.15 torch attaches a recorder to a group that has none, which requires backends that only a compiled group
    has: this is disabled.
    """
    if hasattr(c10d, "_maybe_attach_flight_recorder"):
        c10d._maybe_attach_flight_recorder = lambda *_: None
    for name, value in {"_has_hooks": lambda _: False, "_shutdown": kind.shutdown, "options": None}.items():
        setattr(kind, name, value)


def _options() -> None:
    """Add the attribute ``asyncOp`` to options that lack it, before 2.8: there, torch's Python code waits itself."""
    from torch.distributed import distributed_c10d as c10d

    kinds = (c10d.AllreduceOptions, c10d.AllreduceCoalescedOptions, c10d.ReduceOptions, c10d.AllToAllOptions)
    _CURRENT_STREAM.extend(["asyncOp"] if hasattr(c10d.AllreduceOptions, "asyncOp") else [])
    kind: Any
    for kind in (*kinds, c10d.GatherOptions, c10d.BarrierOptions):
        if not hasattr(kind, "asyncOp"):
            setattr(kind, "asyncOp", property(lambda _: True, lambda _, wanted: None))  # noqa: B010


def _statistics(_: int) -> dict[str, Any]:
    figures = iter(functions().memory_told()[: len(_STATISTICS) * len(_POOLS) * len(_NUMBERS)])
    nothing = dict.fromkeys(_NUMBERS, 0)
    return {
        **dict.fromkeys(_COUNTS, 0),
        "max_split_size": -1,
        **{kind: {pool: {number: next(figures) for number in _NUMBERS} for pool in _POOLS} for kind in _STATISTICS},
        "oversize_allocations": nothing,
        "oversize_segments": dict(nothing),
    }


def _information(_: int) -> tuple[int, int]:
    end = len(_STATISTICS) * len(_POOLS) * len(_NUMBERS)
    free, total = functions().memory_told()[end : end + 2]
    return free, total


def _doing(action: int) -> Callable[..., None]:
    return lambda *_: functions().memory_do(action)


def _stream(index: int) -> torch.Stream:
    return torch.Stream(stream_id=functions().current_stream(), device_index=index, device_type=_CUDA)


def _raise(failed: int) -> None:
    if failed:
        raise RuntimeError(functions().problem().decode())


_LACKING: dict[str, Callable[..., Any]] = {
    # since 2.6
    "_accelerator_getStream": _stream,
    "_accelerator_setStream": lambda stream: functions().set_stream(stream.stream_id),
    "_accelerator_getDeviceIndex": lambda: functions().chosen(),
    "_accelerator_setDeviceIndex": lambda index: _raise(functions().set_index(index)),
    "_accelerator_synchronizeDevice": lambda _: _raise(functions().synchronize()),
    # since 2.9
    "_accelerator_getDeviceStats": _statistics,
    "_accelerator_emptyCache": _doing(_EMPTY),
    "_accelerator_resetPeakStats": _doing(_PEAKS),
    "_accelerator_resetAccumulatedStats": _doing(_ACCUMULATED),
    # since 2.10
    "_accelerator_getMemoryInfo": _information,
}
