"""Judges one launch while its programs run: FastTrack's last accesses (Flanagan and Freund 2009), for a grid.

Programs of a grid may run at once and in any order, whatever their indices, and nothing but atomic operations orders
them. Two accesses to one element by two programs, of which one is a write, are a race unless both are atomic or an
atomic operation orders them. A write that changes nothing harms nobody, and is left out: kernels store one value from
several programs.

Within a program, one thread may read what another wrote before, or the reverse, without a barrier. Which threads have
which elements is the compiler's choice, so this is a hazard and not a race. An element that the whole program reads as
one number, and then one position of a block writes, is a hazard only if the program writes at other positions too: else
nothing comes of what the other threads read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import numpy as np

from streamrace.detectors.grid.order import ProgramOrder
from streamrace.detectors.grid.shadow import NOBODY, SCALAR, SEVERAL, Array, ElementShadow, LastAccess, Page, indexed
from streamrace.detectors.kernel_defects import HAZARD, OUTSIDE, READ_WRITE, REPEATED, WRITE_READ, WRITE_WRITE

Site = tuple[str, int, str]
"""A line of a kernel: file, line, function."""


class GridFault(NamedTuple):
    """A fault of a launch: ``first`` and ``second`` access and their programs. ``verb``: what the second one does.

    A fault of one access (OUTSIDE, REPEATED) has no first line, and one program twice.
    """

    kind: str
    verb: str
    first: Site
    second: Site
    programs: tuple[int, int]


class GridJudge:
    """Follows a launch of ``programs`` programs. ``storages``: start, end and bytes of an element of each storage."""

    def __init__(self, storages: Sequence[tuple[int, int, int]], programs: int) -> None:
        self._shadows = [ElementShadow(*storage) for storage in sorted(storages)]
        self._order = ProgramOrder(programs)
        self._sites: dict[Site, int] = {}
        self._found: dict[tuple[str, Site, Site], GridFault] = {}
        self._epoch = 0
        self._writers: set[int] = set()  # positions that the program writes at, of which two are enough
        self._waiting: list[GridFault] = []  # hazards if there are two

    def begin(self, program: int) -> None:
        """Begin to run a program."""
        self._end()
        self._order.begin(program)
        self._epoch += 1

    def barrier(self) -> None:
        """Note a barrier of the program's threads."""
        self._epoch += 1

    def synchronize(self, addresses: Array, *, acquires: bool, releases: bool) -> None:
        """Note the order that an atomic operation makes, before the operation's own access."""
        self._order.synchronize(addresses, acquires=acquires, releases=releases)

    def outside(self, site: Site, verb: str) -> None:
        """Note an access outside of all storages, which is left out."""
        self._keep(self._alone(OUTSIDE, verb, site))

    def access(
        self, addresses: Array, positions: Array, size: int, site: Site, *, reads: bool, writes: bool,
        atomic: bool = False, stored: Stored | None = None,
    ) -> None:  # fmt: skip
        """Note an access to elements of ``size`` bytes, before it is carried out.

        ``positions``: of the elements in their block; SCALAR for an operation on one element. ``stored``: the values of
        a store, if it is one.
        """
        lowest, highest = int(addresses.min()), int(addresses.max())
        every = np.arange(len(addresses))
        for shadow in self._shadows:
            if highest < shadow.start or lowest >= shadow.end:
                continue
            numbers = every
            if lowest < shadow.start or highest >= shadow.end:
                numbers = np.flatnonzero((addresses >= shadow.start) & (addresses < shadow.end))
            for page, elements, at, which in shadow.parts(addresses[numbers], positions[numbers], size):
                part = _Part(page, elements, at, numbers[which], site, atomic, stored, indexed(elements))
                if writes:
                    self._write(part)
                if reads:
                    self._read(part)

    def faults(self) -> list[GridFault]:
        """Return the faults, one for each pair of lines."""
        self._end()
        return list(self._found.values())

    def _end(self) -> None:
        """Decide on what depends on all that the program does."""
        for fault in self._waiting if len(self._writers) > 1 else ():
            self._keep(fault)
        self._waiting.clear()
        self._writers.clear()

    def _write(self, part: _Part) -> None:
        if len(self._writers) < 2:
            self._writers.update((int(part.positions.min()), int(part.positions.max())))
        written, read, at = part.page.written, part.page.read, part.where
        for kind, last in ((WRITE_WRITE, written), (READ_WRITE, read)):
            by = last.program[at]
            bad = self._order.unordered(by, last.time[at])
            if last is read and not self._order.knows_others:
                bad |= by == SEVERAL
            if part.atomic:
                bad &= ~last.atomic[at]
            if bad.any():
                bad &= ~part.unchanged()
            self._tell(kind, "write", last, part, bad)
        if not part.atomic:
            self._hazard("write", read, part)
            self._hazard("write", written, part)
            self._repeated(part)
        self._note(written, part)
        read.program[at] = NOBODY

    def _read(self, part: _Part) -> None:
        written, read, at = part.page.written, part.page.read, part.where
        bad = self._order.unordered(written.program[at], written.time[at])
        if part.atomic:
            bad &= ~written.atomic[at]
        self._tell(WRITE_READ, "read", written, part, bad)
        if not part.atomic:
            self._hazard("read", written, part)
        before = read.program[at].copy()
        self._note(read, part)
        read.program[at] = np.where((before == NOBODY) | (before == self._order.program), self._order.program, SEVERAL)

    def _note(self, last: LastAccess, part: _Part) -> None:
        at = part.where
        last.program[at], last.time[at], last.atomic[at] = self._order.program, self._order.time, part.atomic
        last.site[at] = self._sites.setdefault(part.site, len(self._sites))
        last.position[at], last.epoch[at] = part.positions, -1 if part.atomic else self._epoch

    def _hazard(self, verb: str, last: LastAccess, part: _Part) -> None:
        at = part.where
        bad = (last.epoch[at] == self._epoch) & (last.position[at] != part.positions)
        bad &= last.program[at] != NOBODY
        if not bad.any():
            return
        if verb == "write" and last is part.page.written:
            bad &= ~part.unchanged()
        if verb == "write" and last is part.page.read and (part.positions == part.positions[0]).all():
            whole = bad & (last.position[at] == SCALAR)
            if whole.any():
                self._waiting.append(self._fault(HAZARD, verb, last, part, whole))
            bad &= ~whole
        self._tell(HAZARD, verb, last, part, bad)

    def _repeated(self, part: _Part) -> None:
        """Tell of a store that writes different values to one element: which of them stays is undefined."""
        if part.stored is None or len(part.elements) < 2:
            return
        turns = np.argsort(part.elements, kind="stable")
        elements, values = part.elements[turns], part.stored.bits[part.numbers[turns]]
        if ((elements[1:] == elements[:-1]) & (values[1:] != values[:-1])).any():
            self._keep(self._alone(REPEATED, "write", part.site))

    def _tell(self, kind: str, verb: str, last: LastAccess, part: _Part, bad: Array) -> None:
        if bad.any():
            self._keep(self._fault(kind, verb, last, part, bad))

    def _fault(self, kind: str, verb: str, last: LastAccess, part: _Part, bad: Array) -> GridFault:
        element = part.elements[np.flatnonzero(bad)[0]]
        first = list(self._sites)[int(last.site[element])]
        return GridFault(kind, verb, first, part.site, (int(last.program[element]), self._order.program))

    def _alone(self, kind: str, verb: str, site: Site) -> GridFault:
        return GridFault(kind, verb, ("", 0, ""), site, (self._order.program, self._order.program))

    def _keep(self, fault: GridFault) -> None:
        self._found.setdefault((fault.kind, fault.first, fault.second), fault)


class Stored(Protocol):
    """The bits of the values that are stored, and a function that returns those which memory has now."""

    @property
    def bits(self) -> Array: ...
    @property
    def present(self) -> Callable[[], Array]: ...


class _Part(NamedTuple):
    """The part of an access that lies in one page. ``numbers``: of its elements among the access's addresses.

    ``where``: its elements as an index of the page's arrays, a slice where possible, which is much faster.
    """

    page: Page
    elements: Array
    positions: Array
    numbers: Array
    site: Site
    atomic: bool
    stored: Stored | None
    where: Array | slice

    def unchanged(self) -> Array:
        """Return which elements have the value already that is written."""
        if self.stored is None:
            return np.zeros(len(self.numbers), bool)
        same: Array = self.stored.bits == self.stored.present()
        return same[self.numbers]


__all__ = ["SCALAR", "GridFault", "GridJudge", "Stored"]
