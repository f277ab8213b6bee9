"""Names scenarios: for tokens, where a name replaces a dozen options, and for fuzzing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from streamrace.scenarios.base import ScenarioError
from streamrace.scenarios.scenario import Scenario, scenario
from streamrace.trace.wording import near


class NamedScenario(NamedTuple):
    """A scenario's options, and its purpose."""

    options: Mapping[str, Any]
    description: str


_SMALL = {"size": "tiny", "steps": 3, "accumulation": 1, "sequence": 32, "fix": "none", "hardware": "a100-12.5gbps"}

NAMED: dict[str, NamedScenario] = {
    "hpz": NamedScenario(_SMALL, "hpZ's race, not shown as recorded: Llama, 4 ranks, hpZ groups of 2, three steps"),
    "hpz-short": NamedScenario({**_SMALL, "steps": 2}, "the same in two steps: the race cannot reach a loss yet"),
    "hpz-long": NamedScenario({**_SMALL, "steps": 8}, "the same in eight steps, to see what becomes of it"),
    "hpz-falcon": NamedScenario(
        {**_SMALL, "steps": 2, "model": "falcon", "slow": {"host": 3000}},
        "the same in two steps with Falcon, and a host so slow that it does not show as recorded",
    ),
    "hpz-accumulation": NamedScenario({**_SMALL, "steps": 2, "accumulation": 2}, "two steps of two micro-batches"),
    "zero3": NamedScenario({**_SMALL, "hpz": 1}, "the same without hpZ: nothing to find"),
    "paro": NamedScenario(
        {**{name: value for name, value in _SMALL.items() if name != "fix"}, "sharding": "IIG", "accumulation": 2},
        "our own engine under PaRO-IIG, groups of 2: nothing to find, unless a synchronisation is taken away",
    ),
    "main": NamedScenario({}, "what 'streamrace run' runs"),
}


def named(name: str, options: Mapping[str, Any] | None = None) -> Scenario:
    """Return the scenario of that name, with ``options`` changed. Raises :class:`ScenarioError`."""
    if name not in NAMED:
        raise ScenarioError(f"there is no scenario '{name}'{near(name, NAMED)}: choose one of {', '.join(NAMED)}")
    return scenario(**{**NAMED[name].options, **(options or {})})


def difference(name: str, chosen: Scenario) -> dict[str, str]:
    """Return the options by which ``chosen`` differs from the scenario of that name, as a token has them."""
    base = named(name).model_dump(mode="json")
    return {field: _text(value) for field, value in chosen.model_dump(mode="json").items() if value != base[field]}


def _text(value: Any) -> str:
    if isinstance(value, dict):
        return ";".join(f"{key}={factor}" for key, factor in value.items())
    if isinstance(value, list):
        return ";".join(map(str, value))
    return "" if value is None else str(value)


def from_text(options: Mapping[str, str]) -> dict[str, Any]:
    """Parse the result of :func:`difference` into options. Raises :class:`ScenarioError`."""
    values: dict[str, Any] = {}
    for name, text in options.items():
        if name not in Scenario.model_fields:
            raise ScenarioError(f"there is no scenario option '{name}': the token is of another release")
        if name == "slow":
            values[name] = dict(part.rpartition("=")[::2] for part in text.split(";") if part)
        elif name in ("frozen", "without"):
            values[name] = tuple(part for part in text.split(";") if part)
        else:
            values[name] = text or None
    return values
