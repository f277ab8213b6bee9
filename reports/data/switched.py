"""What one run or campaign has that others beside it may not have: in a word or two, and as the line it lacks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from streamrace.frameworks.deepspeed.fixes import STOCK, Fix
from streamrace.frameworks.deepspeed.releases import PINNED

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


def taken_away(scenario: Mapping[str, Any], versions: Mapping[str, str]) -> str:
    """What of the program as it was released did not run, and what stands there instead; empty where all of it ran."""
    if scenario.get("sharding"):
        names = ", ".join(map(str, scenario.get("without", ())))
        return f"the synchronisations {names} of our own engine" if names else ""
    fix = next((one for one in Fix if one == scenario.get("fix")), None)
    if fix is None or fix.ordering.stock or versions.get("deepspeed", PINNED) != PINNED:
        return ""
    return STOCK if fix is Fix.NONE else f"{STOCK}; instead, {fix.where}: {fix.what}"
