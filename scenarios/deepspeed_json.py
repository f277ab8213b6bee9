"""Reads a user's DeepSpeed JSON, and refuses detectable errors in one sentence before a rank starts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from streamrace.frameworks.deepspeed.releases import PINNED
from streamrace.scenarios.base import ScenarioError
from streamrace.trace import untrusted

_OBJECTS = (
    "activation_checkpointing", "aio", "amp", "autotuning", "bf16", "bfloat16", "checkpoint", "comet", "comms_logger",
    "compile", "compression_training", "csv_monitor", "curriculum_learning", "data_efficiency", "data_types",
    "eigenvalue", "elasticity", "flops_profiler", "fp16", "hybrid_engine", "nebula", "optimizer", "optimizer.params",
    "pipeline", "progressive_layer_drop", "scheduler", "scheduler.params", "tensor_parallel", "tensorboard", "timers",
    "torch_autocast", "wandb", "zero_optimization",
)  # fmt: skip
_OBJECTS_OR_NULL = ("zero_optimization.offload_optimizer", "zero_optimization.offload_param")
_COUNTS = {  # with their minimum
    "train_batch_size": 1,
    "train_micro_batch_size_per_gpu": 1,
    "gradient_accumulation_steps": 1,
    "zero_optimization.stage": 0,
    "zero_optimization.zero_hpz_partition_size": 1,
    "zero_optimization.mics_shard_size": -1,
}
_MOST = 1_000_000  # the largest of these counts
_KINDS = {dict: "an object", list: "a list", str: "text", bool: "true or false", type(None): "null"}
_ABSENT = object()


def read(path: Path) -> dict[str, Any]:
    """Return the settings as written, "auto" among them. Raises :class:`ScenarioError`."""
    try:
        config = untrusted.read_json(path)
    except OSError as error:
        raise ScenarioError(f"cannot read the DeepSpeed configuration {path}: {error.strerror or error}") from error
    except untrusted.Unreadable as error:
        raise ScenarioError(f"{path} is not JSON: {error}") from None
    if not isinstance(config, dict):
        raise ScenarioError(f"{path} is not a DeepSpeed configuration: it holds no settings")
    for name in (*_OBJECTS, *_OBJECTS_OR_NULL):
        value = _at(config, name)
        if not (value is _ABSENT or isinstance(value, dict) or (value is None and name in _OBJECTS_OR_NULL)):
            raise ScenarioError(f"{path}: {name} is {_kind(value)}, and DeepSpeed wants an object there: {{...}}")
    for name, least in _COUNTS.items():
        value = _at(config, name)
        if value is _ABSENT or value == "auto" or (type(value) is int and least <= value <= _MOST):
            continue
        shown = untrusted.shortened(repr(value)) if type(value) in (int, float) else _kind(value)
        raise ScenarioError(f"{path}: {name} is a whole number from {least} to {_MOST}, not {shown}")
    _refuse_what_is_not_simulated(path, config.get("zero_optimization", {}))
    return config


def _refuse_what_is_not_simulated(path: Path, zero: dict[str, Any]) -> None:
    size = zero.get("mics_shard_size", -1)
    if size == "auto" or size > 0:
        raise ScenarioError(
            f"{path} asks for MiCS (mics_shard_size), which DeepSpeed {PINNED} no longer has: take it out"
        )
    for section in ("offload_optimizer", "offload_param"):
        device = (zero.get(section) or {}).get("device", "none")
        if device != "none":
            raise ScenarioError(
                f"{path} moves state to {device} ({section}): what the host computes there has no price in a hardware "
                "profile, so the step time would be wrong; take it out, or set its device to 'none' "
                "('streamrace check --dry' runs such a script, for its races and memory)"
            )


def _at(config: dict[str, Any], name: str) -> Any:
    value: Any = config
    for part in name.split("."):
        value = value.get(part, _ABSENT) if isinstance(value, dict) else _ABSENT
    return value


def _kind(value: Any) -> str:
    return _KINDS.get(type(value), "a number")
