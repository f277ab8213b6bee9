"""Holds the error of scenarios, which readers of the catalogue need without torch."""

from __future__ import annotations


class ScenarioError(Exception):
    """A scenario that cannot be run. One sentence: the error, and how to correct it."""
