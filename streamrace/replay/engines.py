"""Chooses the engine that orders and numbers a timing's work: Python, or the faster :mod:`streamrace.replay.native`.

Both give the same. Python is used if ``STREAMRACE_ENGINE=python`` is set or the native engine cannot be built.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from functools import cache
from typing import Protocol

import numpy as np
import numpy.typing as npt

from streamrace.compiling import BuildError
from streamrace.detectors.engines import VARIABLE
from streamrace.replay.native import engine
from streamrace.replay.numbering import Deed, Effects, Numbering

_Bytes = npt.NDArray[np.uint8]
_Numbers = npt.NDArray[np.int64]


class Numbers(Protocol):
    """See :class:`streamrace.replay.numbering.Numbering`."""

    def forget(self) -> None: ...
    @property
    def count(self) -> int: ...
    @property
    def words(self) -> int: ...
    @property
    def held(self) -> int: ...
    def lay_out(self, layout: int, bases: _Numbers) -> None: ...
    def drop(self, layout: int) -> None: ...
    def follow(self, layout: int, order: _Numbers) -> tuple[_Numbers, _Numbers]: ...
    def place(self, number: int) -> int: ...
    def arrivals(self, number: int) -> list[int]: ...
    def done(self, numbers: _Numbers) -> None: ...
    def give(self, number: int, memory: _Bytes) -> int: ...
    def keep(self, number: int, memory: _Bytes) -> None: ...
    def bound(self, limit: int) -> None: ...
    def carry_out(self, numbers: _Numbers, effects: Effects, memory: _Bytes) -> int: ...
    def stage(self, number: int, effects: Effects, memory: _Bytes) -> int: ...
    def unstage(self) -> None: ...


def numbers(deeds: Sequence[Deed], bases: _Numbers, sizes: _Numbers, initial: _Bytes, *, limit: int) -> Numbers:
    """Return the object that numbers computations in this process: native if available."""
    make = engine.NativeNumbering if native() else Numbering
    return make(deeds, bases, sizes, initial, limit=limit)


def native() -> bool:
    """Check whether the native engine is used."""
    return os.environ.get(VARIABLE) != "python" and _built()


@cache
def _built() -> bool:
    try:
        engine.load()
    except (BuildError, OSError) as problem:
        warnings.warn(
            f"timings are ordered in Python, with the same results, but slower: {problem}",
            RuntimeWarning,
            stacklevel=2,
        )
        return False
    return True
