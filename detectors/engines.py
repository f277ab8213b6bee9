"""Selects the happens-before engine: ``detectors.order``, written to be read, or ``detectors.native``, to be fast.

Their findings are the same, byte for byte. ``both`` runs both engines and raises if they differ: all tests of this
project use it.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterable
from functools import cache
from typing import Literal, Protocol, get_args

from streamrace.compiling import BuildError
from streamrace.detectors.native import engine as native
from streamrace.detectors.order import happens_before as python
from streamrace.detectors.order.rank import Report
from streamrace.trace.records import TraceRecord

Engine = Literal["native", "python", "both"]
VARIABLE = "STREAMRACE_ENGINE"


class EnginesDiffer(Exception):
    """A bug of this project: the findings of the two engines differ."""


class OrderEngine(Protocol):
    """An engine at work on one run: see :class:`streamrace.detectors.order.happens_before.HappensBefore`."""

    def feed(self, rank: int, records: Iterable[TraceRecord]) -> None: ...
    def finish(self) -> None: ...
    def waits(self, rank: int) -> bool: ...
    def settle(self) -> None: ...
    @property
    def live_state(self) -> int: ...


def orders(engine: Engine | None) -> list[Callable[[Report], OrderEngine]]:
    """Return factories of the requested engines: two if the engines are compared.

    ``engine`` None: the value of :data:`VARIABLE`, else the native engine; if that cannot be built, the Python engine,
    with a warning. Raises ValueError for an unknown name, and :class:`streamrace.compiling.BuildError` if the native
    engine was requested and cannot be built.
    """
    choice = engine or os.environ.get(VARIABLE) or None
    if choice is None:
        return [native.NativeHappensBefore if _built() else python.HappensBefore]
    if choice not in get_args(Engine):
        raise ValueError(f"{VARIABLE} names an engine, {', '.join(get_args(Engine))}, not '{choice}'")
    makers: dict[str, Callable[[Report], OrderEngine]] = {
        "native": native.NativeHappensBefore,
        "python": python.HappensBefore,
    }
    return list(makers.values()) if choice == "both" else [makers[choice]]


@cache
def _built() -> bool:
    try:
        native.load()
    except (BuildError, OSError) as problem:
        warnings.warn(
            f"the engine in Python is used, with the same findings, ten times as slow: {problem}",
            RuntimeWarning,
            stacklevel=2,
        )
        return False
    return True
