"""Which options go together: those of our own engine, and those that only DeepSpeed has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel

from scenarios.sharding.strategy import ShardingError, strategy
from scenarios.sharding.topology import groups_of


def check_options(
    made: BaseModel, *, sharding: str, ours: Sequence[str], theirs: Mapping[str, Any], ranks: int, group: int
) -> None:
    """Raises ValueError for options of ``made`` that do not fit, as pydantic's validators do.

    ``ours``: fields that mean nothing to DeepSpeed; ``theirs``: fields that are DeepSpeed's, and what they are when
    nobody asks for it.
    """
    fields = type(made).model_fields
    if not sharding:
        for name in ours:
            if getattr(made, name) != fields[name].default:
                raise ValueError(f"{_option(name)} is of our own engine: name a strategy too, --sharding IIG for one")
        return
    for name, usual in theirs.items():
        if getattr(made, name) != usual:
            raise ValueError(f"{_option(name)} is DeepSpeed's, and --sharding does without DeepSpeed: leave one out")
    try:
        strategy(sharding)
        groups_of(ranks, group)
    except ShardingError as error:
        raise ValueError(str(error)) from None


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"
