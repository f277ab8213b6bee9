"""Numbers the computation of each effect of a timing: equal computations of two timings have the same number.

Value numbering (Cocke and Schwartz 1970) of memory: effects are followed in their order, and for every byte the
computation that left it is known. A *computation* is an effect with all that it reads, as pieces left by other
computations. The same effect reading the same pieces is the same computation, whatever else happened around it, in this
timing or an earlier one. Computations are compared as a whole, not by hashes.

This is the specification, used if there is no C++ compiler; its twin is ``csrc/numbering.cpp``.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

INITIAL = 0
"""The computation that stands for memory before all effects; offsets in it are addresses as recorded."""
NONE = -1

_Bytes = npt.NDArray[np.uint8]
_Numbers = npt.NDArray[np.int64]
Effects = npt.NDArray[Any]
"""By place, the callable (without arguments) that carries the effect out on memory as recorded."""


class Span(NamedTuple):
    """The bytes ``lo`` to ``hi`` of a block, which is numbered among the blocks of all ranks."""

    block: int
    lo: int
    hi: int


class HandedOn(NamedTuple):
    """Says that the bytes ``lo`` to ``hi`` of the new ``block`` were bytes of ``former``, from ``start`` on."""

    block: int
    former: int
    lo: int
    hi: int
    start: int


@dataclass(frozen=True)
class Deed:
    """The parts of an effect that numbering needs.

    ``what``: nothing, work, arrive and leave (of ``member`` of ``members`` in ``exchange``), or inherit (``passed``).
    """

    what: str
    reads: tuple[Span, ...] = ()
    writes: tuple[Span, ...] = ()
    exchange: int = NONE
    member: int = 0
    members: int = 0
    passed: tuple[HandedOn, ...] = ()


NOTHING = Deed("nothing")


class OutOfOrder(Exception):
    """A member of a collective ends before all have arrived: its output is not a function of the members' inputs."""


class _Layout(NamedTuple):
    """Memory cut into atoms, which no effect touches in part. ``lengths``, ``initial`` (recorded address): by atom."""

    lengths: list[int]
    initial: list[int]
    reads: list[list[tuple[int, int]]]  # by place and region: from, to
    writes: list[list[tuple[int, int]]]
    passed: list[list[tuple[int, int, int, int]]]  # by place: from, to, from, to


class Numbering:
    """Numbers the computations of many timings, and keeps their results, up to ``limit`` bytes.

    ``bases`` and ``sizes``: by block in the order of allocation, its address in memory as recorded, and its size.
    ``initial``: that memory, before all effects.
    """

    def __init__(self, deeds: Sequence[Deed], bases: _Numbers, sizes: _Numbers, initial: _Bytes, *, limit: int) -> None:
        self._deeds, self._sizes, self._initial, self._limit = deeds, sizes.tolist(), initial, limit
        self._bases: list[int] = bases.tolist()
        self._layouts: dict[int, _Layout] = {}
        self._outs: list[list[int]] = []  # by place: the offset of each region in the effect's result
        for deed in deeds:
            begins, at = [], 0
            for span in deed.writes:
                begins.append(at)
                at += span.hi - span.lo
            self._outs.append([*begins, at])
        self._arrive = {(deed.exchange, deed.member): at for at, deed in enumerate(deeds) if deed.what == "arrive"}
        self.words = 0
        self.held = 0
        self.forget()

    def forget(self) -> None:
        """Forget all computations, but no layouts."""
        self._numbers: dict[tuple[int, ...], int] = {}
        self._keys: list[tuple[int, ...]] = [()]
        self._done = [True]
        self._kept: OrderedDict[int, _Bytes] = OrderedDict()  # the most recently used comes last
        self._staged: dict[int, list[int]] = {}  # by exchange: the arrivals whose data are staged
        self.words = self.held = 0

    @property
    def count(self) -> int:
        return len(self._keys)

    # -- layouts ------------------------------------------------------------------------------------------

    def lay_out(self, layout: int, bases: _Numbers) -> None:
        """Define ``layout`` as memory in which the blocks begin at ``bases``."""
        where: list[int] = bases.tolist()
        cuts: set[int] = set()
        moves: list[tuple[int, int, int]] = []
        passed: list[list[tuple[int, int, int]]] = []
        for deed in self._deeds:
            for span in (*deed.reads, *deed.writes):
                cuts.update((where[span.block] + span.lo, where[span.block] + span.hi))
            deed_moves = []
            for handed in deed.passed:
                source, target = where[handed.former] + handed.start, where[handed.block] + handed.lo
                if source != target:
                    deed_moves.append((source, target, handed.hi - handed.lo))
            passed.append(deed_moves)
            moves += deed_moves
        for source, target, size in moves:
            cuts.update((source, source + size, target, target + size))
        self._begin(cuts, where)
        self._align(cuts, moves)
        order = sorted(cuts)
        at = {cut: number for number, cut in enumerate(order)}

        def atoms(span: Span) -> tuple[int, int]:
            return at[where[span.block] + span.lo], at[where[span.block] + span.hi]

        self._layouts[layout] = _Layout(
            [after - cut for cut, after in pairwise(order)],
            self._initials(order, where),
            [[atoms(span) for span in deed.reads] for deed in self._deeds],
            [[atoms(span) for span in deed.writes] for deed in self._deeds],
            [[(at[begin], at[begin + size], at[to], at[to + size]) for begin, to, size in moves] for moves in passed],
        )

    def drop(self, layout: int) -> None:
        del self._layouts[layout]

    def _begin(self, cuts: set[int], where: Sequence[int]) -> None:
        """Cut at block boundaries, so that each atom belongs to one block, the one allocated last."""
        if cuts:
            lowest, highest = min(cuts), max(cuts)
            for base, size in zip(where, self._sizes, strict=True):
                cuts.update(cut for cut in (base, base + size) if lowest < cut < highest)

    @staticmethod
    def _align(cuts: set[int], moves: Sequence[tuple[int, int, int]]) -> None:
        """Mirror each cut of a moved range: the source is cut where the target is, and vice versa."""
        both_ways = [*moves, *((target, source, size) for source, target, size in moves)]
        growing = True
        while growing:
            order, growing = sorted(cuts), False
            for source, target, size in both_ways:
                inside = order[bisect_left(order, source) : bisect_left(order, source + size)]
                more = {cut - source + target for cut in inside} - cuts
                if more:
                    cuts |= more
                    growing = True

    def _initials(self, order: Sequence[int], where: Sequence[int]) -> list[int]:
        """Return by atom the recorded address of its initial content."""
        initials = [0] * max(0, len(order) - 1)
        for block, size in enumerate(self._sizes):  # newer blocks last: they own the memory of their formers
            base = where[block]
            for at in range(bisect_left(order, base), bisect_left(order, base + size)):
                if at < len(initials):
                    initials[at] = self._bases[block] + order[at] - base
        return initials

    # -- numbers ------------------------------------------------------------------------------------------

    def follow(self, layout: int, order: _Numbers) -> tuple[_Numbers, _Numbers]:
        """Follow the effects in ``order`` (places).

        Returns the computations by place (:data:`NONE`: the effect computes nothing), and the places, in order, of the
        computations that were not done yet (:meth:`done`). Raises :class:`OutOfOrder`.
        """
        lay = self._layouts[layout]
        who, offset = [INITIAL] * len(lay.lengths), list(lay.initial)
        computed = np.full(len(self._deeds), NONE, dtype=np.int64)
        fresh: list[int] = []
        arrived: dict[int, list[int]] = {}
        for place in order.tolist():
            deed = self._deeds[place]
            if deed.what == "nothing":
                continue
            if deed.what == "inherit":
                for begin, end, to, until in lay.passed[place]:
                    assert end - begin == until - to
                    who[to:until], offset[to:until] = who[begin:end], offset[begin:end]
                continue
            key = [place]
            if deed.what == "leave":
                key += arrived.get(deed.exchange, [NONE])
                if NONE in key:
                    raise OutOfOrder
            for begin, end in lay.reads[place]:
                self._pieces(key, who, offset, lay.lengths, begin, end)
            number = self._number(tuple(key))
            computed[place] = number
            if deed.what == "arrive":
                arrived.setdefault(deed.exchange, [NONE] * deed.members)[deed.member] = number
            elif not self._done[number]:
                fresh.append(place)
            for (begin, end), out in zip(lay.writes[place], self._outs[place], strict=False):
                for at in range(begin, end):
                    who[at], offset[at] = number, out
                    out += lay.lengths[at]
        return computed, np.array(fresh, dtype=np.int64)

    @staticmethod
    def _pieces(
        key: list[int], who: Sequence[int], offset: Sequence[int], lengths: Sequence[int], begin: int, end: int
    ) -> None:
        """Append the pieces in the atoms ``begin`` to ``end``: (computation, offset in its result, bytes)."""
        first = True
        for at in range(begin, end):
            if not first and who[at] == key[-3] and offset[at] == key[-2] + key[-1]:
                key[-1] += lengths[at]
            else:
                key += (who[at], offset[at], lengths[at])
            first = False

    def _number(self, key: tuple[int, ...]) -> int:
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = len(self._keys)
            self._keys.append(key)
            self._done.append(False)
            self.words += len(key)
        return number

    def place(self, number: int) -> int:
        """Return the place of the computation's effect."""
        return self._keys[number][0]

    def arrivals(self, number: int) -> list[int]:
        """Return the computations of all arrivals, by member, if this is a member's end; else an empty list."""
        key = self._keys[number]
        deed = self._deeds[key[0]]
        return list(key[1 : 1 + deed.members]) if deed.what == "leave" else []

    def done(self, numbers: _Numbers) -> None:
        """Mark computations as carried out, with their shown values known."""
        for number in numbers.tolist():
            self._done[number] = True

    # -- results ------------------------------------------------------------------------------------------

    def give(self, number: int, memory: _Bytes) -> int:
        """Write the computation's inputs to their recorded addresses in ``memory``.

        Returns a computation that left some input and whose result is not kept; :data:`NONE` if all are written.
        """
        key = self._keys[number]
        deed = self._deeds[key[0]]
        at = 1 + (deed.members if deed.what == "leave" else 0)
        for span in deed.reads:
            address, until = self._bases[span.block] + span.lo, self._bases[span.block] + span.hi
            while address < until:
                who, offset, size = key[at : at + 3]
                at += 3
                kept = self._initial if who == INITIAL else self._kept.get(who)
                if kept is None:
                    return who
                if who != INITIAL:
                    self._kept.move_to_end(who)
                memory[address : address + size] = kept[offset : offset + size]
                address += size
        return NONE

    def keep(self, number: int, memory: _Bytes) -> None:
        """Keep the computation's result, found in ``memory`` as recorded; evict the least recently used for it."""
        place = self._keys[number][0]
        outs = self._outs[place]
        if not outs[-1] or number in self._kept:
            return
        kept = np.empty(outs[-1], dtype=np.uint8)
        for span, out in zip(self._deeds[place].writes, outs, strict=False):
            address = self._bases[span.block] + span.lo
            kept[out : out + span.hi - span.lo] = memory[address : address + span.hi - span.lo]
        self._kept[number] = kept
        self.held += outs[-1]
        self.bound(self._limit)

    def bound(self, limit: int) -> None:
        """Keep at most ``limit`` bytes from now on."""
        self._limit = limit
        while self.held > self._limit and self._kept:
            _, oldest = self._kept.popitem(last=False)
            self.held -= len(oldest)

    # -- carrying out -------------------------------------------------------------------------------------

    def carry_out(self, numbers: _Numbers, effects: Effects, memory: _Bytes) -> int:
        """Carry out computations in order, and keep their results. Returns the number of computations carried out.

        If that is not all, an input of the next computation is no longer kept.
        """
        for at, number in enumerate(numbers.tolist()):
            if self.stage(number, effects, memory) != NONE or self.give(number, memory) != NONE:
                return at
            effects[self.place(number)]()
            self.keep(number, memory)
        return len(numbers)

    def stage(self, number: int, effects: Effects, memory: _Bytes) -> int:
        """Stage the data of all arrivals before a collective's end at a member. Returns the same as :meth:`give`."""
        arrivals, exchange = self.arrivals(number), self._deeds[self.place(number)].exchange
        if not arrivals or self._staged.get(exchange) == arrivals:
            return NONE
        self._staged.pop(exchange, None)
        for member, arrival in enumerate(arrivals):
            missing = self.give(arrival, memory)
            if missing != NONE:
                return missing
            effects[self._arrive[exchange, member]]()
        self._staged[exchange] = arrivals
        return NONE

    def unstage(self) -> None:
        """Mark the staged data of all collectives as invalid."""
        self._staged.clear()
