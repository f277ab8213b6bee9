"""Executes many timings of a recording, and each computation that several timings have in common only once.

An effect's result is a function of what it reads. So the effects of a timing are numbered by what they read
(:mod:`streamrace.replay.numbering`); a computation that was carried out before, in this timing or another one, is not
carried out again. Timings that share a beginning share its work, and where they converge again they share what follows.
In two timings that differ only in the order of work on disjoint memory every value is the same (Mazurkiewicz 1977): all
computations are shared then, and the outcome is looked up.

The outcome is bit for bit that of executing everything (:meth:`streamrace.replay.replayer.Replayer.run_order`), which
stays the specification, and is used where sharing is not possible: an effect whose two blocks overlap, a collective
that ends at a member before it began at another, and results far larger than the limit. Before anything is shared, a
trial run checks that each effect reads and writes nothing outside its footprint.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from streamrace.replay.device_timing import DeviceTiming
from streamrace.replay.engines import Numbers, numbers
from streamrace.replay.faults import ReplayError
from streamrace.replay.footprints import Footprints, Region
from streamrace.replay.layouts import Layouts
from streamrace.replay.numbering import NONE, NOTHING, Deed, HandedOn, OutOfOrder, Span
from streamrace.replay.placement import Hold
from streamrace.replay.replayer import Departure, Replayer, ReplayOutcome, ValuesShown
from streamrace.trace.records import Reuse

KEPT_BYTES = 256 << 20
"""Default limit of the kept results, in bytes."""
_WORDS = 16 << 20  # words that describe computations (128 MiB); above that, all are forgotten
_LAYOUTS = 128
_FEW = 1 << 12
_FILLS = (0x55, 0xAA)
_FAR = 4

_Places = npt.NDArray[np.int64]


@dataclass
class Shared:
    """Counts shared work. ``whole``, ``part``, ``none``: timings of which all, some or no work was executed.

    ``plainly``: of ``whole``, those that could not share; ``effects``: computations carried out, trial run included.
    """

    whole: int = 0
    part: int = 0
    none: int = 0
    plainly: int = 0
    effects: int = 0


class _TooMuch(Exception):
    """A needed result was evicted again and again."""


class SharingReplayer:
    """Executes timings of ``replayer``, whose effects were settled before. ``kept``: bytes that may be kept.

    ``shared``: counters; ``reason``: why nothing can be shared (empty if sharing works); ``written``: bytes that one
    timing writes. If ``kept`` is smaller, only whole timings are shared, and nothing if it is far smaller.
    """

    def __init__(
        self, replayer: Replayer, *, kept: int = KEPT_BYTES, numbering: Callable[..., Numbers] = numbers
    ) -> None:
        self.replayer = replayer
        self.shared = Shared()
        self.reason = ""
        self._hands = replayer.hands
        self._effects = np.empty(len(self._hands.effects), dtype=object)
        self._effects[:] = self._hands.effects
        self._hands.arena.reset()
        self._memory = self._hands.arena.bytes
        self._layouts = Layouts(replayer.recording, self._hands.arena)
        self._deeds = self._deeds_or_none()
        self._works = np.array(
            [deed.what not in ("nothing", "inherit", "arrive") for deed in self._deeds], dtype=np.bool_
        )
        self.written = sum(span.hi - span.lo for deed in self._deeds for span in deed.writes)
        self._keeps = self.written <= kept
        self._kept = kept
        if self.written > _FAR * kept:
            self.reason = f"a timing writes {self.written} bytes, and no more than {kept} are kept"
        layouts, most = self._layouts, max(kept, self.written)
        self._numbering = numbering(self._deeds, layouts.recorded, layouts.sizes, self._memory.copy(), limit=most)
        self._laid: OrderedDict[frozenset[tuple[int, Hold]], int] = OrderedDict()
        shows = [(place, *shown) for place in self._unsettled() if (shown := replayer.shows(place)) is not None]
        self._showing = np.array([place for place, _, _ in shows], dtype=np.int64)
        self._looks = np.array([look for _, look, _ in shows], dtype=np.int64)
        self._look_of = {place: look for place, look, _ in shows}
        self._look_at = np.full(len(self._deeds), NONE, dtype=np.int64)
        self._look_at[self._showing] = self._looks
        self._guarded = np.array([place for place, _, guarded in shows if guarded], dtype=np.int64)
        self._recorded = np.array(replayer.recorded, dtype=np.int64)
        self._tried = False
        arrivals = [(at, deed) for at, deed in enumerate(self._deeds) if deed.what == "arrive"]
        self._arrive = {(deed.exchange, deed.member): at for at, deed in arrivals}
        self._executed = replayer.executed
        self._settled = replayer.settled
        self._expected = replayer.expected
        self._checksums = np.zeros(_FEW, dtype=np.int64)  # by computation: the checksum that it showed
        self._losses: dict[int, float] = {}
        self._bad: dict[int, int] = {}

    @property
    def computations(self) -> tuple[int, int]:
        """Return the number of known computations, and the number of words that describe them."""
        return self._numbering.count, self._numbering.words

    @property
    def held(self) -> int:
        """Return the number of bytes of kept results."""
        return self._numbering.held

    # -- running ------------------------------------------------------------------------------------------

    def run(self, timing: DeviceTiming | None = None) -> ReplayOutcome:
        """Run as :meth:`Replayer.run` does."""
        return self.run_order(self.replayer.graph.timed(timing))

    def run_order(self, order: _Places) -> ReplayOutcome:
        """Run as :meth:`Replayer.run_order` does. Raises ValueError if other effects were settled in the meantime."""
        replayer = self.replayer
        if replayer.settled is not self._settled:
            raise ValueError("other effects were settled, so what was shared is no longer what comes next")
        if not self._tried:
            self._try_out()
        if self.reason:
            return self._plainly(order)
        if self._expected is not replayer.expected or self._numbering.words > _WORDS:
            self.forget()
        late = replayer.holds.late(order, replayer.settled)
        active = order[~replayer.settled[order]]
        try:
            computed, fresh = self._numbering.follow(self._layout(late), active)
        except OutOfOrder:
            return self._plainly(order)
        if len(fresh):
            if not self._keeps:
                return self._plainly(order, computed)
            try:
                self._carry_out(computed, fresh)
            except _TooMuch:
                return self._plainly(order, computed)
        self._count(computed, len(fresh))
        return self._outcome(order, active, computed)

    def _plainly(self, order: _Places, computed: _Places | None = None) -> ReplayOutcome:
        """Execute everything; the values shown are known from then on."""
        outcome = self.replayer.run_order(order)
        self.shared.whole += 1
        self.shared.plainly += 1
        if computed is not None:
            places = np.flatnonzero((computed != NONE) & self._works)
            self._learn(computed[places], places)
        return outcome

    def _count(self, computed: _Places, fresh: int) -> None:
        every = int(np.count_nonzero((computed != NONE) & self._works))
        self.shared.whole += 0 < fresh == every
        self.shared.part += 0 < fresh < every
        self.shared.none += not fresh

    def _outcome(self, order: _Places, active: _Places, computed: _Places) -> ReplayOutcome:
        recorded = self._recorded
        numbers = computed[self._showing]
        checksums = recorded.copy()
        checksums[self._looks] = self._checksums[numbers]
        losses, bad = {}, {}
        for look, number in zip(self._looks.tolist(), numbers.tolist(), strict=True):
            if number in self._losses:
                losses[look] = self._losses[number]
            if number in self._bad:
                bad[look] = self._bad[number]
        return ReplayOutcome(
            tuple(checksums.tolist()), losses, bad, self._departure(active, computed, checksums), order
        )

    def _departure(self, active: _Places, computed: _Places, checksums: _Places) -> Departure | None:
        """Return the first value read by the host that differs from the recorded one."""
        others = [
            place
            for place in self._guarded.tolist()
            if checksums[self._look_of[place]] != self._recorded[self._look_of[place]]
        ]
        if not others:
            return None
        place = int(active[np.flatnonzero(np.isin(active, others))[0]])
        effect, look = self.replayer.graph.effects[place], self._look_of[place]
        name = self.replayer.recording.names.name(effect.rank, effect.item)
        return Departure(name, int(self._recorded[look]), int(checksums[look]))

    # -- carrying out -------------------------------------------------------------------------------------

    def _carry_out(self, computed: _Places, fresh: _Places) -> None:
        """Carry out the effects ``fresh`` (places), in order. Raises :class:`_TooMuch`."""
        if self._executed != self.replayer.executed:  # another user changed the memory in between
            self._numbering.unstage()
            self._executed = self.replayer.executed
        remaining, numbers = len(self._deeds), computed[fresh]
        with self.replayer.as_live():
            while len(numbers):
                done = self._see(numbers, fresh)
                numbers, fresh = numbers[done:], fresh[done:]
                todo = numbers[:1].tolist()
                while todo:  # an input of the next computation was evicted: carry that out first
                    missing = self._missing(todo[-1])
                    if missing == NONE:
                        self._see(*self._one(todo.pop()))
                        continue
                    todo.append(missing)
                    remaining -= 1
                    if remaining < 0:
                        raise _TooMuch
                numbers, fresh = numbers[1:], fresh[1:]

    def _see(self, numbers: _Places, places: _Places) -> int:
        """Carry out these computations of the effects at ``places``, as far as possible, and store what they show."""
        self.replayer.seen = ValuesShown(list(self.replayer.recorded))
        done = self._numbering.carry_out(numbers, self._effects, self._memory)
        self.shared.effects += done
        self._learn(numbers[:done], places[:done])
        return done

    def _one(self, number: int) -> tuple[_Places, _Places]:
        return np.array([number], dtype=np.int64), np.array([self._numbering.place(number)], dtype=np.int64)

    def _missing(self, number: int) -> int:
        """Return the computation that must be carried out before this one because its result is not kept."""
        missing = self._numbering.stage(number, self._effects, self._memory)
        return missing if missing != NONE else self._numbering.give(number, self._memory)

    def _learn(self, numbers: _Places, places: _Places) -> None:
        """Store the values that these computations, of the effects at ``places``, have just shown."""
        self._numbering.done(numbers)
        most = int(numbers.max(initial=0))
        if most >= len(self._checksums):
            more = np.zeros(max(most + 1, 2 * len(self._checksums)) - len(self._checksums), dtype=np.int64)
            self._checksums = np.concatenate([self._checksums, more])
        seen, looks = self.replayer.seen, self._look_at[places]
        shows = looks != NONE
        for number, look in zip(numbers[shows].tolist(), looks[shows].tolist(), strict=True):
            self._checksums[number] = seen.checksums[look]
            if look in seen.losses:
                self._losses[number] = seen.losses[look]
            if look in seen.bad:
                self._bad[number] = seen.bad[look]

    # -- trying out ---------------------------------------------------------------------------------------

    def _try_out(self) -> None:
        """Carry out the recorded timing with each effect's declared reads as the only meaningful memory.

        All values shown must be as recorded; a difference is reported in :attr:`reason`.
        """
        self._tried = True
        if self.reason:
            return
        replayer = self.replayer
        order = replayer.graph.timed()
        active = order[~replayer.settled[order]]
        late = replayer.holds.late(order, replayer.settled)
        try:
            computed, _ = self._numbering.follow(self._layout(late), active)
        except OutOfOrder:
            self.reason = "as recorded, a collective ends at a member before it began at another"
            return
        before = self._memory.copy()
        self._memory[:] = _FILLS[0]
        replayer.seen = ValuesShown(list(replayer.recorded))
        try:
            with replayer.as_live():
                for place in active.tolist():
                    if self._works[place] and not self.reason:
                        self._prove(int(computed[place]), place)
        except ReplayError as error:  # plain execution may still be right
            self.reason = f"effects cannot be executed from the bytes that their records name: {error}"
        finally:
            self._memory[:] = before  # content that the host brought in is not reset before each replay
        if self.reason:
            return
        seen = self._outcome(order, active, computed)
        if seen.checksums != replayer.recorded or seen.departure is not None:
            self.reason = "effects read bytes that their records do not name"
        self._numbering.bound(self._kept if self._keeps else 0)

    def _prove(self, number: int, place: int) -> None:
        """Carry out a computation twice, with different bytes around its spans in all of its blocks.

        The computation may neither change these bytes nor depend on them.
        """
        deed, seen, look = self._deeds[place], self.replayer.seen, self._look_of.get(place)
        blocks = {span.block for span in (*deed.reads, *deed.writes)}
        arrivals = [self._deeds[self._arrive[deed.exchange, member]] for member in range(deed.members)]
        others = [self._bytes(span) for arrival in arrivals for span in arrival.reads]  # the members' inputs
        block_bytes = [self._bytes(Span(block, 0, int(self._layouts.sizes[block]))) for block in blocks]
        outputs = [self._bytes(span) for span in deed.writes]
        results: list[Any] = []
        for fill in _FILLS:
            self._numbering.stage(number, self._effects, self._memory)
            for part in (*others, *block_bytes):
                part[:] = fill
            self._numbering.give(number, self._memory)
            before = [part.copy() for part in block_bytes]
            self._hands.effects[place]()
            after = [part.tobytes() for part in outputs]
            results.append((after, None if look is None else seen.checksums[look]))
            for block, part in zip(blocks, before, strict=True):
                for span, now in zip(deed.writes, outputs, strict=True):
                    if span.block == block:
                        part[span.lo : span.hi] = now
            if any((then != now).any() for then, now in zip(before, block_bytes, strict=True)):
                self.reason = f"effect {place} writes bytes that its record does not name"
        if results[0] != results[1]:
            self.reason = f"effect {place} reads bytes that its record does not name"
        self._numbering.keep(number, self._memory)
        self.shared.effects += 1
        self._learn(*self._one(number))
        for part in (*others, *block_bytes):
            part[:] = _FILLS[0]

    def _bytes(self, span: Span) -> npt.NDArray[np.uint8]:
        base = int(self._layouts.recorded[span.block])
        return self._memory[base + span.lo : base + span.hi]

    # -- contents ------------------------------------------------------------------------------------------

    def forget(self) -> None:
        """Forget all results."""
        self._numbering.forget()
        self._checksums = np.zeros(_FEW, dtype=np.int64)
        self._losses, self._bad = {}, {}
        self._expected = self.replayer.expected

    def _layout(self, late: frozenset[tuple[int, Hold]]) -> int:
        layout = self._laid.get(late)
        if layout is None:
            layout = len(self._laid)
            if layout >= _LAYOUTS:
                _, layout = self._laid.popitem(last=False)
                self._numbering.drop(layout)
            self._numbering.lay_out(layout, self._layouts.bases(late))
            self._laid[late] = layout
        self._laid.move_to_end(late)
        return layout

    def _unsettled(self) -> Iterable[int]:
        return np.flatnonzero(~self.replayer.settled).tolist()

    def _deeds_or_none(self) -> list[Deed]:
        """Return the deeds of all effects; empty deeds, with a ``reason``, if the recording does not define them."""
        try:
            deeds = self._read()
        except (TypeError, ValueError, LookupError, AttributeError, OverflowError, ReplayError) as error:
            self.reason = f"the recording does not say what its work touches: {error}"
        else:
            self._check(deeds)
        return [NOTHING] * len(self.replayer.graph.effects) if self.reason else deeds

    def _read(self) -> list[Deed]:
        """Return the deeds of all effects, empty for settled ones."""
        replayer, numbers = self.replayer, self._layouts.numbers
        footprints = Footprints(replayer.recording)
        passed: dict[tuple[int, int], list[HandedOn]] = {}
        for rank, records in replayer.recording.records.items():
            for record in records:
                if isinstance(record, Reuse) and (rank, record.block) in numbers and (rank, record.former) in numbers:
                    heir, former = numbers[rank, record.block], numbers[rank, record.former]
                    passed.setdefault((rank, record.block), []).append(
                        HandedOn(heir, former, record.lo, record.hi, record.start)
                    )

        def spans(regions: Iterable[Region]) -> tuple[Span, ...]:
            return tuple(Span(numbers[region.rank, region.block], region.lo, region.hi) for region in regions)

        deeds = [NOTHING] * len(replayer.graph.effects)
        for place in self._unsettled():
            effect = replayer.graph.effects[place]
            key = effect.rank, effect.item
            if effect.what == "back":
                continue
            if effect.what in ("inherit", "inherited"):
                deeds[place] = Deed("inherit", passed=tuple(passed.get(key, ())))
                continue
            foot = footprints.of(effect)
            kind = effect.what if effect.what in ("arrive", "leave") else "work"
            exchange, member, members = replayer.exchange(*key) if kind != "work" else (NONE, 0, 0)
            deeds[place] = Deed(kind, spans(foot.reads), spans(foot.writes), exchange, member, members)
        return deeds

    def _check(self, deeds: Sequence[Deed]) -> None:
        """Set ``reason`` if an effect leaves its blocks or touches two that overlap: it would depend on addresses."""
        bases, sizes = self._layouts.recorded.tolist(), self._layouts.sizes.tolist()
        for place, deed in enumerate(deeds):
            spans = (*deed.reads, *deed.writes)
            bounds = [(span.lo, span.hi, sizes[span.block]) for span in spans]
            bounds += [(move.lo, move.hi, sizes[move.block]) for move in deed.passed]
            bounds += [(move.start, move.start + move.hi - move.lo, sizes[move.former]) for move in deed.passed]
            if not all(0 <= lo <= hi <= size for lo, hi, size in bounds):
                self.reason = f"effect {place} touches bytes outside of its block"
            until = 0
            for base, size in sorted((bases[block], sizes[block]) for block in {span.block for span in spans}):
                if base < until:
                    self.reason = f"effect {place} touches two blocks that share memory"
                until = base + size
