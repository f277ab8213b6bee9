"""What a person reads: findings, tables, the terminal, pages.

For a notebook: ``from streamrace import reports; run = reports.load("runs/unstable"); run.steps``. What reads runs
needs pandas, and is only imported when it is asked for.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if not __name__.startswith("streamrace."):  # a second copy of each class, unequal to the first
    raise ImportError("import streamrace.reports: the folder reports of the checkout is a part of that package")

if TYPE_CHECKING:
    from streamrace.reports.data.loading import ReportError, Run, Source, comparable, load

__all__ = ["ReportError", "Run", "Source", "comparable", "load"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        return getattr(import_module("streamrace.reports.data.loading"), name)
    raise AttributeError(f"module 'reports' has no attribute '{name}'")
