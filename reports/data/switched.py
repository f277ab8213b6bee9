"""What one run or campaign has that others beside it may not have, in a word or two."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# What decides that: runs and campaigns of one program may differ in it, as it changes no value that they compute.
SWITCHES = frozenset({"fix", "deepspeed", "sharding", "group", "rings", "without"})


def switched(scenario: Mapping[str, Any], versions: Mapping[str, str], name: str) -> str:
    """The fix, the release where another one ran, or the strategy of our own engine; ``name`` where there is none."""
    release = str(scenario.get("deepspeed", ""))
    if release and release != str(versions.get("deepspeed", release)):
        return f"DeepSpeed {release}"
    if scenario.get("sharding"):
        away = ", ".join(map(str, scenario.get("without", ())))
        return f"{scenario['sharding']} without {away}" if away else str(scenario["sharding"])
    return str(scenario.get("fix", name))
