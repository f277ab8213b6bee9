"""Compares ZeRO's limits with the model when the engine is built, and scales them to it where that is asked for.

DeepSpeed's defaults are absolute, and for models of billions of parameters. A model below them is gathered once a step,
reduced in one bucket and never released: the code of a large model does not run.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from types import ModuleType
from typing import Any

from streamrace.device import limits

_LARGEST_DEFAULT = 1e9
_ZERO_3 = {
    "max_live_parameters": "stage3_max_live_parameters",
    "max_reuse_distance": "stage3_max_reuse_distance",
    "prefetch_bucket_size": "stage3_prefetch_bucket_size",
    "reduce_bucket_size": "reduce_bucket_size",
    "sub_group_size": "sub_group_size",
}
"""Arguments that count elements of the model, and their names in the configuration."""
_ZERO_2 = {"reduce_bucket_size": "reduce_bucket_size", "allgather_bucket_size": "allgather_bucket_size"}
_PERSISTENCE = "param_persistence_threshold"


def _of_model(given: Mapping[str, Any]) -> Iterable[Any]:
    parameters: Iterable[Any] = given["module"].parameters()
    return parameters


def _of_optimizer(given: Mapping[str, Any]) -> Iterable[Any]:
    return [each for group in given["init_optimizer"].param_groups for each in group["params"]]


_OPTIMIZERS: dict[str, tuple[dict[str, str], Callable[[Mapping[str, Any]], Iterable[Any]]]] = {
    "DeepSpeedZeroOptimizer_Stage3": (_ZERO_3, _of_model),
    "DeepSpeedZeroOptimizer": (_ZERO_2, _of_optimizer),
}
"""ZeRO's optimizers: their limits, and where their arguments have the model's parameters."""


def adapt(module: ModuleType) -> None:
    """Note the limits of each engine whose optimizer is of DeepSpeed's ``stage3`` or ``stage_1_and_2``."""
    for name, (names, parameters) in _OPTIMIZERS.items():
        optimizer = vars(module).get(name)
        if optimizer is not None and optimizer.__module__ == module.__name__:
            limits.observe(optimizer, functools.partial(_limited, names, parameters))


def _limited(
    names: Mapping[str, str], of: Callable[[Mapping[str, Any]], Iterable[Any]], given: Mapping[str, Any]
) -> dict[str, int]:
    """Note the limits among the arguments ``given``; return those that are scaled, by argument."""
    parameters = list(of(given))
    sizes = [getattr(each, "ds_numel", each.numel()) for each in parameters]
    total, largest = sum(sizes), max(sizes, default=0)
    unmet: dict[str, tuple[str, int, int]] = {}  # the name in the configuration, the limit, and scaled to the model
    for argument, name in names.items():
        value = given.get(argument)
        if isinstance(value, (int, float)) and value >= total:
            least = 1 if argument == "prefetch_bucket_size" else largest
            unmet[argument] = name, int(value), max(least, round(min(value, _LARGEST_DEFAULT) * total / limits.LARGE))
    threshold = given.get(_PERSISTENCE)
    if isinstance(threshold, (int, float)) and threshold >= largest:
        shapes = [tuple(getattr(each, "ds_shape", each.shape)) for each in parameters]
        vectors = [size for size, shape in zip(sizes, shapes, strict=True) if len(shape) < 2]
        unmet[_PERSISTENCE] = f"stage3_{_PERSISTENCE}", int(threshold), max(vectors, default=0)
    scaled = {argument: entry for argument, entry in unmet.items() if limits.scaling() and entry[2] < total}
    never_met = {name: value for argument, (name, value, _) in unmet.items() if argument not in scaled}
    changes = {name: (value, now) for name, value, now in scaled.values()}
    if unmet:
        limits.note("DeepSpeed", total, never_met, changes)
    return {argument: now for argument, (_, _, now) in scaled.items()}
