"""Orders the programs of a grid: by atomic operations, as programs have no other means.

An atomic operation that releases passes on what its program has done and knows, through its address; one that
acquires takes this over (vector clocks: Mattern 1988; release and acquire as in the PTX memory model, which Triton's
``sem`` names). A program's time advances with each atomic operation. Programs run one after the other, so the time of
an earlier program is final.
"""

from __future__ import annotations

import numpy as np

from streamrace.detectors.grid.shadow import Array

_FEW = 64  # addresses of one operation that are kept apart
_EVERYWHERE = -1


class ProgramOrder:
    """The order of ``programs`` programs of one launch, of which ``program`` runs at ``time``."""

    def __init__(self, programs: int) -> None:
        self._programs = programs
        self._released: dict[int, Array] = {}  # by address: the times of all programs that are known there
        self._known: Array | None = None
        self.program, self.time = -1, 0

    def begin(self, program: int) -> None:
        """Begin to run a program, which knows nothing of the others."""
        self.program, self.time, self._known = program, 1, None

    def synchronize(self, addresses: Array, *, acquires: bool, releases: bool) -> None:
        """Order the program by an atomic operation on these addresses.

        An operation on many addresses is no lock. It counts as one on every address, which orders more than it does: a
        race may be missed, and none is invented.
        """
        places = np.unique(addresses).tolist()
        if len(places) > _FEW:
            places = [_EVERYWHERE]
        for place in places:
            if acquires:
                for source in {place, _EVERYWHERE} if place != _EVERYWHERE else set(self._released):
                    self._learn(self._released.get(source))
            if releases:
                mine = np.zeros(self._programs, np.int32) if self._known is None else self._known.copy()
                mine[self.program] = self.time
                before = self._released.get(place)
                self._released[place] = mine if before is None else np.maximum(before, mine)
        self.time += 1

    def unordered(self, programs: Array, times: Array) -> Array:
        """Return which accesses, by these programs at these times, nothing orders before what the program does now."""
        others: Array = (programs >= 0) & (programs != self.program)
        if self._known is None:
            return others
        result: Array = others & (times > self._known[np.maximum(programs, 0)])
        return result

    @property
    def knows_others(self) -> bool:
        """Check whether the program has acquired anything."""
        return self._known is not None

    def _learn(self, times: Array | None) -> None:
        if times is not None:
            self._known = times.copy() if self._known is None else np.maximum(self._known, times)
