"""Which engine of happens-before judges: ``detectors.order``, to be read, or ``detectors.native``, to be fast.

Their findings are the same, byte for byte. ``both`` judges with each and raises where they are not: the tests of this
project run so, whatever they judge.
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
    """A bug of this project: the two engines do not find the same."""


class OrderEngine(Protocol):
    """An engine at work on one run: see :class:`streamrace.detectors.order.happens_before.HappensBefore`."""

    def feed(self, rank: int, records: Iterable[TraceRecord]) -> None: ...
    def finish(self) -> None: ...
    def waits(self, rank: int) -> bool: ...
    def settle(self) -> None: ...
    @property
    def live_state(self) -> int: ...


def orders(engine: Engine | None) -> list[Callable[[Report], OrderEngine]]:
    """What makes the engines that are asked for: two where they are compared.

    ``engine`` None: what :data:`VARIABLE` says, else the native one; where that cannot be built, the other serves, and
    a warning says so. Raises ValueError for an unknown name, and :class:`streamrace.compiling.BuildError` where
    the native one was asked for and cannot be built.
    """
    said = engine or os.environ.get(VARIABLE) or None
    if said is None:
        return [native.NativeHappensBefore if _built() else python.HappensBefore]
    if said not in get_args(Engine):
        raise ValueError(f"{VARIABLE} names an engine, {', '.join(get_args(Engine))}, not '{said}'")
    makers: dict[str, Callable[[Report], OrderEngine]] = {
        "native": native.NativeHappensBefore,
        "python": python.HappensBefore,
    }
    return list(makers.values()) if said == "both" else [makers[said]]


@cache
def _built() -> bool:
    try:
        native.load()
    except (BuildError, OSError) as problem:
        warnings.warn(
            f"the engine in Python judges, which finds the same and takes ten times as long: {problem}",
            RuntimeWarning,
            stacklevel=2,
        )
        return False
    return True
