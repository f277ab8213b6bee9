"""Times in words, as all reports say them."""

from __future__ import annotations


def duration(ns: int) -> str:
    for unit, size in (("s", 10**9), ("ms", 10**6), ("us", 10**3)):
        if ns >= size:
            return f"{ns / size:.4g} {unit}"
    return f"{ns} ns"


def closeness(margin_ns: int) -> str:
    """How close the two accesses of a race came; below zero: in the wrong order."""
    if margin_ns < 0:
        return f"reversed by up to {duration(-margin_ns)}"
    return f"closest: {duration(margin_ns)} apart"


def replays(token: str) -> str:
    """The command that executes a timing again."""
    return f"python -m repro replay {token}"
