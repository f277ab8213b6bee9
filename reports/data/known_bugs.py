"""Recognises races as bugs of the catalogue, by the places of their two accesses."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from packaging.version import InvalidVersion, Version

from streamrace.detectors.places import between
from streamrace.reports.data.findings import Findings, FoundRace
from streamrace.scenarios.catalogue.entry import Entry, entries


def known_bug(run: Findings, found: FoundRace) -> str:
    """Return which bug of the catalogue a finding is, its thread and the release that mends it, without a full stop.

    It is one if any of its races is; empty if none is. A program of the catalogue counts by its library's places, too.
    """
    for entry in _of_libraries():
        if any(between(race, entry.places) for race in found.races):
            return _sentence(entry, _versions(run))
    return ""


@cache
def _of_libraries() -> tuple[Entry, ...]:
    """Return the entries whose two places are a library's, not their own program's."""
    return tuple(
        entry
        for entry in entries()
        if entry.races and not any(place.partition(":")[0] == entry.path.name for place in entry.places)
    )


def _versions(run: Findings) -> Mapping[str, str]:
    """Return the versions that ran, by package: the environment's, and those that replaced them."""
    asked = (pin.partition("==") for pin in run.scenario.get("packages", {}))
    return {**run.versions, **{name: version for name, _, version in asked}}


def _sentence(entry: Entry, versions: Mapping[str, str]) -> str:
    title = entry.title[:1].lower() + entry.title[1:] if entry.title[1:2].islower() else entry.title
    thread = f" ({entry.threads[0]})" if entry.threads else ""
    return f"{entry.id}, {title}{thread}; {_mended(entry, versions)}"


def _mended(entry: Entry, versions: Mapping[str, str]) -> str:
    if entry.kind == "open":
        return "no release mends it yet"
    pins = dict(pin.split("==") for pin in entry.fixed.packages)
    name = next((name for name in pins if name in versions), next(iter(pins), ""))
    if not name:
        return f"affected: {entry.known}"
    here = versions.get(name, "")
    if here and _older(here, pins[name]):
        return f"{name} {pins[name]} mends it, and this is {here}: upgrade"
    return f"{name} {pins[name]} mended it, and this is {here or 'another release'}: see what came back or was left out"


def _older(version: str, than: str) -> bool:
    try:
        return Version(version) < Version(than)
    except InvalidVersion:
        return False
