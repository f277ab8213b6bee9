"""Renders results for people: findings, tables, the terminal, pages.

For a notebook: ``from streamrace import reports; run = reports.load("runs/unstable"); run.steps``. The code that reads
runs needs pandas and is imported on first use only.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if not __name__.startswith("streamrace."):  # otherwise each class would exist twice, and the copies are unequal
    raise ImportError("import streamrace.reports: the folder reports of the checkout is a part of that package")

if TYPE_CHECKING:
    from streamrace.reports.data.loading import ReportError, Run, Source, comparable, load

__all__ = ["ReportError", "Run", "Source", "comparable", "load"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        return getattr(import_module("streamrace.reports.data.loading"), name)
    raise AttributeError(f"module 'reports' has no attribute '{name}'")
