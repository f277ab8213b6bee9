"""Defines what follows a launch element by element, if anything does: the device knows only this interface.

A floor above installs the judge (:mod:`streamrace.frameworks.kernel_races`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from streamrace.device.triton.memory import Array

Site = tuple[str, int, str]
"""A line of a kernel: file, line, function."""


class StoredValues(NamedTuple):
    """The bits of the values that are stored, and a function that returns those which memory has now."""

    bits: Array
    present: Callable[[], Array]


class Fault(Protocol):
    """A fault of a launch, see :class:`streamrace.trace.records.KernelFault`."""

    @property
    def kind(self) -> str: ...
    @property
    def verb(self) -> str: ...
    @property
    def first(self) -> Site: ...
    @property
    def second(self) -> Site: ...
    @property
    def programs(self) -> tuple[int, int]: ...


class LaunchJudge(Protocol):
    """Gets what a launch does, before it is done; see :class:`streamrace.detectors.grid.judge.GridJudge`."""

    def begin(self, program: int) -> None: ...

    def barrier(self) -> None: ...

    def synchronize(self, addresses: Array, *, acquires: bool, releases: bool) -> None: ...

    def outside(self, site: Site, verb: str) -> None: ...

    def access(
        self, addresses: Array, positions: Array, size: int, site: Site, *, reads: bool, writes: bool,
        atomic: bool = False, stored: StoredValues | None = None,
    ) -> None: ...  # fmt: skip

    def faults(self) -> Sequence[Fault]: ...


Storages = Sequence[tuple[int, int, int]]
"""Start, end and bytes of an element of each storage that a launch may access."""
_judge: list[Callable[[Storages, int], LaunchJudge]] = []


def use(judge: Callable[[Storages, int], LaunchJudge]) -> None:
    """Judge the inside of each launch from now on. ``judge``: gets its storages and the number of its programs."""
    _judge[:] = [judge]


def judge_of(storages: Storages, programs: int) -> LaunchJudge | None:
    """Return the judge of a launch; None if launches are not judged."""
    return _judge[0](storages, programs) if _judge else None
