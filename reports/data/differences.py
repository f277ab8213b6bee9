"""Describes what distinguishes a run or campaign from those it is compared with: in a word, and by the missing line."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from streamrace.frameworks.deepspeed.fixes import STOCK, Fix
from streamrace.frameworks.deepspeed.releases import PINNED

# Options that switch a fix or a strategy: comparable runs and campaigns may differ in these, which change no value.
SWITCHES = frozenset({"fix", "deepspeed", "sharding", "group", "rings", "without"})


def switched(scenario: Mapping[str, Any], versions: Mapping[str, str], name: str) -> str:
    """Return the fix, the release if another one ran, or the strategy of our own engine; ``name`` if none is known."""
    release = str(scenario.get("deepspeed", ""))
    if release and release != str(versions.get("deepspeed", release)):
        return f"DeepSpeed {release}"
    if scenario.get("sharding"):
        away = ", ".join(map(str, scenario.get("without", ())))
        return f"{scenario['sharding']} without {away}" if away else str(scenario["sharding"])
    return str(scenario.get("fix", name))


def taken_away(scenario: Mapping[str, Any], versions: Mapping[str, str]) -> str:
    """Return which part of the released program did not run, and its replacement; empty if all of it ran."""
    if scenario.get("sharding"):
        names = ", ".join(map(str, scenario.get("without", ())))
        return f"the synchronisations {names} of our own engine" if names else ""
    fix = next((member for member in Fix if member == scenario.get("fix")), None)
    if fix is None or fix.ordering.stock or versions.get("deepspeed", PINNED) != PINNED:
        return ""
    return STOCK if fix is Fix.NONE else f"{STOCK}; instead, {fix.where}: {fix.what}"
