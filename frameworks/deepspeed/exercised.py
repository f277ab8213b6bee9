"""Was hpZ's secondary partition ever read? A clean verdict on hpZ rests on it.

A model that stays below ``stage3_max_live_parameters`` is gathered once and released only after its step. Then no
secondary partition is read, and nothing can be said of the copy that has to be there before.
"""

from __future__ import annotations

import functools
import sys
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Exercised:
    """What this process did with hpZ. ``on``: ``zero_hpz_partition_size`` is above 1; ``reads``: all-gathers of
    secondary partitions that the parameter coordinator issued.
    """

    on: bool
    reads: int

    def sentence(self) -> str:
        """What was on and never happened; empty if there is nothing to say."""
        if not self.on or self.reads:
            return ""
        return (
            "hpZ is on, and no secondary partition was ever read: the model stays below stage3_max_live_parameters, "
            "or its parameters below stage3_param_persistence_threshold"
        )


_reads = [0]


def exercised() -> Exercised:
    """The facts of this process, so far. Imports nothing: a program without DeepSpeed has no hpZ."""
    groups = sys.modules.get("deepspeed.utils.groups")
    on = groups is not None and groups._get_zero_param_intra_parallel_group() is not None
    return Exercised(on, _reads[0])


def watch(coordinator: type[Any]) -> None:
    """Count at ``PartitionedParameterCoordinator.__all_gather_params_``, where fetches and prefetches come through.

    A parameter that is not there and has a secondary partition is gathered from it, by the conditions in that function.
    """
    name = "_PartitionedParameterCoordinator__all_gather_params_"
    plain = getattr(coordinator, name, None)
    if plain is None:  # a release in which it has another name: nothing is known of its reads
        return

    @functools.wraps(plain)
    def gather(self: Any, params: Any, *rest: Any, **more: Any) -> Any:
        params = list(params)
        _reads[0] += any(
            param.ds_status.name == "NOT_AVAILABLE" and getattr(param, "ds_secondary_tensor", None) is not None
            for param in params
        )
        return plain(self, params, *rest, **more)

    setattr(coordinator, name, gather)
