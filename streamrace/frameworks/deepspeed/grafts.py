"""Puts one function's behaviour of one DeepSpeed release into another, to show why releases order work differently.

Two changes between 0.13.4 and 0.19.8 (``deepspeed/runtime/zero``) move hpZ's race. A graft takes one of them into the
other release, in memory, so that each can be shown to be the reason (``streamrace why``):

* *Where available parameters are counted from.* The coordinator prefetches while ``__n_available_params`` is below
  ``stage3_max_live_parameters`` (``partitioned_param_coordinator.py``, ``fetch_sub_module``). 0.13.4 sets it to zero at
  the end of backward (``stage3.py``, ``backward``: ``reset_step``). The embedding is still gathered then, as its input
  needs no gradient and its hook behind backward never runs; ``step`` releases it, and subtracts its elements a second
  time. So the next forward pass begins below zero, and prefetches so many elements more. 0.19.8 sets it to zero at the
  beginning of forward (``parameter_offload.py``, ``_start_of_forward_hook``), as 0.16.9 does and 0.14.5 does not.
* *How often a secondary is written.* Until 0.13.5 ``_partition_param_sec`` (``partition_parameters.py``) copies at each
  release; 0.14.5 and later ones return at once where the secondary exists already.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from enum import StrEnum
from typing import Any

from streamrace.detectors.live.patches import listen
from streamrace.frameworks.deepspeed.releases import PINNED

_OLD = ("0.13.2", "0.13.4", "0.13.5")
_COUNT = "_PartitionedParameterCoordinator__n_available_params"


class Graft(StrEnum):
    """A graft's name for users; ``into``: the releases that can take it (empty: all); ``what``: its effect there."""

    NONE = "none", (), "nothing"
    COUNT_AT_FORWARD = "count-at-forward", _OLD, "live parameters counted from forward on (0.19.8)"
    COUNT_AT_BACKWARD = (
        "count-at-backward",
        (PINNED,),
        "live parameters counted from backward's end (0.13.4)",
    )
    COPY_ONCE = "copy-once", _OLD, "a secondary written once a step (0.19.8)"
    COPY_EACH = "copy-each", (PINNED,), "a secondary written at each release (0.13.4)"

    into: tuple[str, ...]
    what: str

    def __new__(cls, name: str, into: tuple[str, ...] = (), what: str = "") -> Graft:
        graft = str.__new__(cls, name)
        graft._value_ = name
        graft.into, graft.what = into, what
        return graft


def graft(chosen: Graft) -> None:
    """Apply a graft, for as long as this process lives. Before ``deepspeed.initialize``."""
    _GRAFTS[chosen]()


def _count_at_forward() -> None:
    from deepspeed.runtime.zero.parameter_offload import DeepSpeedZeRoOffload

    def begin(offload: Any, *_: Any) -> None:
        for coordinator in offload.param_coordinators.values():
            setattr(coordinator, _COUNT, 0)

    def before(offload: Any) -> None:  # in front of DeepSpeed's own hook, which prefetches already
        offload.module.register_forward_pre_hook(lambda *_: begin(offload))

    listen(DeepSpeedZeRoOffload, "setup_zero_stage3_hooks", before=before)


def _count_at_backward() -> None:
    from deepspeed.runtime.zero.stage3 import DeepSpeedZeroOptimizer_Stage3

    from streamrace.frameworks.deepspeed.stock import PartitionedParameterCoordinator

    def end(optimizer: Any) -> None:
        setattr(optimizer.parameter_offload.get_param_coordinator(), _COUNT, 0)

    counts: list[int] = []
    listen(DeepSpeedZeroOptimizer_Stage3, "backward_epilogue", before=end)
    listen(
        PartitionedParameterCoordinator,
        "reset_step",
        before=lambda coordinator: counts.append(getattr(coordinator, _COUNT)),
        after=lambda _, coordinator: setattr(coordinator, _COUNT, counts.pop()),
    )


def _copies(*, each: bool) -> None:
    """Replace the copy: an existing secondary is written again (``each``) or not."""
    from deepspeed.runtime.zero.partition_parameters import Init

    original = Init._partition_param_sec

    @functools.wraps(original)
    def copy(init: Any, param: Any, buffer: Any = None, has_been_updated: bool = False) -> Any:
        if each:
            return original(init, param, buffer, True)
        if param.ds_secondary_tensor is not None and not has_been_updated:
            return None
        return original(init, param, buffer, has_been_updated)

    Init._partition_param_sec = copy


_GRAFTS: dict[Graft, Callable[[], None]] = {
    Graft.NONE: lambda: None,
    Graft.COUNT_AT_FORWARD: _count_at_forward,
    Graft.COUNT_AT_BACKWARD: _count_at_backward,
    Graft.COPY_ONCE: functools.partial(_copies, each=False),
    Graft.COPY_EACH: functools.partial(_copies, each=True),
}
