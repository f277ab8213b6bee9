"""Numbers of what is computed: the same number is the same bytes, in Python and in C++ alike."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import pairwise
from typing import Any
from zlib import crc32

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamrace.detectors.engines import VARIABLE
from streamrace.replay.engines import Numbers
from streamrace.replay.native.engine import NativeNumbering
from streamrace.replay.numbering import INITIAL, NONE, NOTHING, Deed, HandedOn, Numbering, OutOfOrder, Span
from streamrace.replay.waiting import Waiting, ordered
from tests.examples import examples

BLOCK = 8  # bytes
BLOCKS = 5
AREA = BLOCK * BLOCKS
SPANS = st.builds(
    lambda block, lo, size: Span(block, lo, min(BLOCK, lo + size)),
    st.integers(0, BLOCKS - 1), st.integers(0, BLOCK - 1), st.integers(1, BLOCK),
)  # fmt: skip
OVERLAPPING = np.array([0, 8, 4, 16, 12])
"""Where the blocks lie in a timing in which some have memory in common."""


def touching(deed: Deed) -> bool:
    """Is it of two blocks that overlap there? Such work is not numbered (:mod:`streamrace.replay.sharing`)."""
    bases = sorted(OVERLAPPING[block] for block in {span.block for span in (*deed.reads, *deed.writes)})
    return any(after - base < BLOCK for base, after in pairwise(bases))


WORK = st.builds(
    lambda reads, writes: Deed("work", tuple(dict.fromkeys(reads)), tuple(dict.fromkeys(writes))),
    st.lists(SPANS, max_size=2), st.lists(SPANS, max_size=2),
).filter(lambda deed: not touching(deed))  # fmt: skip
HEIRS = st.builds(
    lambda former, lo, size, start: Deed("inherit", passed=(HandedOn(BLOCKS - 1, former, lo, lo + size, start),)),
    st.integers(0, BLOCKS - 2), st.integers(0, 4), st.integers(1, 4), st.integers(0, 4),
)  # fmt: skip
MEET = st.builds(
    lambda one, other, out, more: [
        Deed("arrive", (one,), exchange=0, member=0, members=2),
        Deed("arrive", (other,), exchange=0, member=1, members=2),
        Deed("leave", (), (out,), exchange=0, member=0, members=2),
        Deed("leave", (more,), (more,), exchange=0, member=1, members=2),
    ],
    SPANS, SPANS, SPANS, SPANS,
)  # fmt: skip
APART = [np.array([1000 + 100 * block for block in range(BLOCKS)]), np.arange(BLOCKS) * BLOCK]


class Plain:
    """Executes deeds on bytes, which are mixed from all that is read: in a timing's own memory."""

    def __init__(self, deeds: Sequence[Deed], bases: Any, initial: Any) -> None:
        self._deeds, self._bases = deeds, bases.tolist()
        self.memory = np.full(2000, 255, dtype=np.uint8)
        for block, base in enumerate(self._bases):
            self.memory[base : base + BLOCK] = initial[block * BLOCK : (block + 1) * BLOCK]
        self._arrived: dict[int, int] = {}

    def part(self, span: Span) -> Any:
        base = self._bases[span.block]
        return self.memory[base + span.lo : base + span.hi]

    def run(self, place: int) -> int:
        """Gives a checksum of what the effect made, and of what it made it from."""
        deed = self._deeds[place]
        for one in deed.passed:
            source, target = self._bases[one.former] + one.start, self._bases[one.block] + one.lo
            self.memory[target : target + one.hi - one.lo] = self.memory[source : source + one.hi - one.lo].copy()
        crc = crc32(bytes([place]))
        for span in deed.reads:
            crc = crc32(self.part(span).tobytes(), crc)
        if deed.what == "arrive":
            self._arrived[deed.member] = crc
        if deed.what == "leave":
            crc = crc32(repr(sorted(self._arrived.items())).encode(), crc)
        for number, span in enumerate(deed.writes):
            drawn = np.random.default_rng(crc + number)
            self.part(span)[:] = drawn.integers(0, 256, span.hi - span.lo, dtype=np.uint8)
        for span in deed.writes:
            crc = crc32(self.part(span).tobytes(), crc)
        return crc


@st.composite
def stories(draw: st.DrawFn) -> tuple[list[Deed], list[tuple[int, list[int]]]]:
    """What effects do, and timings of them: a layout, and an order of the places."""
    deeds = [NOTHING, *draw(st.lists(st.one_of(WORK, WORK, HEIRS), min_size=1, max_size=7)), *draw(MEET)]
    orders = st.tuples(st.integers(0, 2), st.permutations(range(len(deeds))))
    return deeds, draw(st.lists(orders, min_size=1, max_size=6))


def engines(deeds: Sequence[Deed], limit: int) -> Iterator[Numbers]:
    initial = np.arange(AREA, dtype=np.uint8)
    sizes = np.full(BLOCKS, BLOCK, dtype=np.int64)
    for make in (Numbering, NativeNumbering):
        one = make(deeds, np.arange(BLOCKS) * BLOCK, sizes, initial, limit=limit)
        for layout, bases in enumerate([*APART, OVERLAPPING]):
            one.lay_out(layout, bases.astype(np.int64))
        yield one


def legal(deeds: Sequence[Deed], order: Sequence[int]) -> bool:
    whats = [deeds[place].what for place in order]
    return "leave" not in whats[: len(whats) - 1 - whats[::-1].index("arrive")]


@examples(150)
@given(stories(), st.sampled_from([0, 10, 40, 1000]))
def test_the_same_number_is_the_same_bytes(story: tuple[list[Deed], list[tuple[int, list[int]]]], limit: int) -> None:
    deeds, timings = story
    python, native = engines(deeds, limit)
    known: dict[int, int] = {}
    memory = [np.zeros(AREA, dtype=np.uint8) for _ in range(2)]
    for layout, order in timings:
        places = np.array(order, dtype=np.int64)
        if not legal(deeds, order):
            for one in (python, native):
                with pytest.raises(OutOfOrder):
                    one.follow(layout, places)
            continue
        computed, fresh = python.follow(layout, places)
        for one, other in zip((computed, fresh), native.follow(layout, places), strict=True):
            assert one.tolist() == other.tolist()
        assert (python.count, python.words) == (native.count, native.words)
        plain = Plain(deeds, [*APART, OVERLAPPING][layout], np.arange(AREA))
        for place in order:
            deed, number = deeds[place], int(computed[place])
            before = [plain.part(span).copy() for span in deed.reads]
            crc = plain.run(place)
            if deed.what in ("nothing", "inherit"):
                assert number == NONE
                continue
            assert known.setdefault(number, crc) == crc
            assert python.place(number) == native.place(number) == place
            assert python.arrivals(number) == native.arrivals(number)
            missing = [one.give(number, mine) for one, mine in zip((python, native), memory, strict=True)]
            assert missing[0] == missing[1] != INITIAL
            if missing[0] == NONE and not overlapping(deed.reads):
                for mine in memory:
                    given_ = [mine[one.block * BLOCK :][one.lo : one.hi] for one in deed.reads]
                    assert all((then == now).all() for then, now in zip(before, given_, strict=True))
            for one, mine in zip((python, native), memory, strict=True):
                for span in deed.writes:
                    mine[span.block * BLOCK :][span.lo : span.hi] = plain.part(span)
                if deed.what != "arrive":
                    one.done(np.array([number]))
                one.keep(number, mine)
            assert python.held == native.held <= limit
        again, nothing = native.follow(layout, places)
        assert again.tolist() == computed.tolist() and not len(nothing)
    others = list(engines(deeds, limit))
    for one, other in zip((python, native), others, strict=True):
        one.forget()
        assert (one.count, one.words, one.held) == (1, 0, 0)
        for layout, order in timings:
            if legal(deeds, order):
                for then, now in zip(*(it.follow(layout, np.array(order)) for it in (other, one)), strict=True):
                    assert then.tolist() == now.tolist()
        reading = range(1, one.count)
        assert [one.give(it, memory[0]) for it in reading] == [other.give(it, memory[0]) for it in reading]


class AsRecorded:
    """The same effects on memory as recorded, which holds at each time what somebody has put there."""

    def __init__(self, deeds: Sequence[Deed]) -> None:
        self._it = Plain(deeds, np.arange(BLOCKS) * BLOCK, np.arange(AREA))
        self.memory = self._it.memory
        self.log: list[int] = []  # the checksums of all that was carried out, but for arrivals
        self.effects = np.empty(len(deeds), dtype=object)
        for place, deed in enumerate(deeds):
            self.effects[place] = partial(self._it.run if deed.what == "arrive" else self._logged, place)

    def _logged(self, place: int) -> None:
        self.log.append(self._it.run(place))

    def carry_out(self, numbers: Numbers, wanted: list[int], most: int) -> list[int]:
        """In this order, and before each what it reads and what was given up. Gives what was carried out."""
        carried: list[int] = []
        while wanted:
            done = numbers.carry_out(np.array(wanted), self.effects, self.memory)
            carried += wanted[:done]
            wanted = wanted[done:]
            while wanted and len(carried) < most:
                missing = numbers.stage(wanted[0], self.effects, self.memory)
                if missing == NONE:
                    missing = numbers.give(wanted[0], self.memory)
                if missing == NONE:
                    break
                wanted.insert(0, missing)
        return carried


@examples(150)
@given(stories(), st.booleans())
def test_carried_out_elsewhere_it_makes_the_same_bytes(
    story: tuple[list[Deed], list[tuple[int, list[int]]]], scarce: bool
) -> None:
    """On memory as recorded, from what is kept; also where what one timing makes drives out what others made."""
    deeds, timings = story
    limit = sum(span.hi - span.lo for deed in deeds for span in deed.writes) if scarce else 1000
    known: dict[int, int] = {}
    sides = [(one, AsRecorded(deeds)) for one in engines(deeds, limit)]
    for layout, order in timings:
        if not legal(deeds, order):
            continue
        carried = []
        for numbers, here in sides:
            here.log.clear()
            computed, fresh = numbers.follow(layout, np.array(order))
            carried.append(here.carry_out(numbers, computed[fresh].tolist(), 100 * len(deeds)))
            numbers.done(computed[fresh])
        assert carried[0] == carried[1]
        assert sides[0][1].log == sides[1][1].log
        for number, crc in zip(carried[0], sides[0][1].log, strict=True):
            assert known.setdefault(number, crc) == crc
        plain = Plain(deeds, [*APART, OVERLAPPING][layout], np.arange(AREA))
        for place in order:
            crc = plain.run(place)
            if deeds[place].what in ("work", "leave"):
                assert known[int(computed[place])] == crc


def test_what_an_effect_raises_arrives() -> None:
    deeds = [Deed("work", (), (Span(0, 0, 8),)) for _ in range(3)]
    for numbers in engines(deeds, 1000):
        here = AsRecorded(deeds)
        here.effects[1] = partial(int, "no number")
        computed, _ = numbers.follow(0, np.arange(3))
        with pytest.raises(ValueError, match="no number"):
            numbers.carry_out(computed, here.effects, here.memory)
        assert len(here.log) == 1
        with pytest.raises(TypeError):
            numbers.carry_out(computed, np.array([None, None, None]), here.memory)


def test_however_many_there_are_each_is_found_again() -> None:
    deeds = [Deed("work", (Span(0, 0, 8),)) for _ in range(5000)]
    for numbers in engines(deeds, 0):
        first, _ = numbers.follow(0, np.arange(5000))
        assert sorted(first.tolist()) == list(range(1, 5001))
        assert numbers.follow(0, np.arange(5000))[0].tolist() == first.tolist() and numbers.count == 5001


def test_what_is_cut_in_one_block_is_cut_in_all_that_hand_on_the_same_bytes() -> None:
    """Block 4 has the bytes of block 0 in one timing, of block 1 in another; of block 0 somebody reads a part."""
    deeds = [
        Deed("work", (Span(0, 0, 2),)),
        Deed("inherit", passed=(HandedOn(4, 0, 0, 8, 0),)),
        Deed("work", (), (Span(1, 0, 8),)),
        Deed("inherit", passed=(HandedOn(4, 1, 0, 8, 0),)),
        Deed("work", (Span(4, 0, 8),)),
    ]
    for numbers in engines(deeds, 1000):
        here = AsRecorded(deeds)
        computed, _ = numbers.follow(0, np.array([2, 3, 4]))
        assert numbers.carry_out(computed[[2]], here.effects, here.memory) == 1
        made = here.memory[8:16].tobytes()
        assert numbers.give(int(computed[4]), here.memory) == NONE
        assert here.memory[32:40].tobytes() == made


def test_nothing_is_carried_out_from_what_is_not_there() -> None:
    one, other = Span(0, 0, 8), Span(1, 0, 8)
    deeds = [Deed("work", (), (one,)), Deed("work", (one,), (other,))]
    for numbers in engines(deeds, 1000):
        here = AsRecorded(deeds)
        computed, fresh = numbers.follow(0, np.arange(2))
        assert numbers.carry_out(computed[1:], here.effects, here.memory) == 0 and not here.log
        assert numbers.carry_out(computed[fresh], here.effects, here.memory) == 2 == len(here.log)


def test_a_collective_that_was_broken_off_is_begun_again() -> None:
    """It took in one member's new data, and the other's was not there: what it has is of neither timing."""
    one, other = Span(0, 0, 8), Span(1, 0, 8)
    deeds = [
        *(Deed("work", (), (span,)) for span in (one, other, one, other)),
        Deed("arrive", (one,), exchange=0, member=0, members=2),
        Deed("arrive", (other,), exchange=0, member=1, members=2),
        Deed("leave", (), (Span(2, 0, 8),), exchange=0, member=0, members=2),
    ]
    for numbers in engines(deeds, 1000):
        here = AsRecorded(deeds)
        taken: list[int] = []
        here.effects[4], here.effects[5] = partial(taken.append, 0), partial(taken.append, 1)
        (early, _), (late, _) = (numbers.follow(0, np.array(order)) for order in ([0, 1, 4, 5, 6], [2, 3, 4, 5, 6]))
        assert numbers.carry_out(early[[0, 1]], here.effects, here.memory) == 2
        assert numbers.carry_out(late[[2]], here.effects, here.memory) == 1
        assert numbers.stage(int(early[6]), here.effects, here.memory) == NONE
        assert numbers.stage(int(late[6]), here.effects, here.memory) == late[3]
        assert taken == [0, 1, 0]
        assert numbers.carry_out(early[[6]], here.effects, here.memory) == 1
        assert taken == [0, 1, 0, 0, 1]
        numbers.unstage()
        assert numbers.stage(int(early[6]), here.effects, here.memory) == NONE
        assert len(taken) == 7


def overlapping(spans: Sequence[Span]) -> bool:
    """Two of them lie in one place of memory as recorded: then the later one is what is found there."""
    return any(one.block == other.block and one.hi > other.lo for one, other in pairwise(sorted(spans)))


def test_who_reads_the_same_in_another_order_computes_the_same() -> None:
    one, other, third = Span(0, 0, 8), Span(1, 0, 8), Span(2, 0, 8)
    deeds = [Deed("work", (), (one,)), Deed("work", (), (other,)), Deed("work", (one, other), (third,))]
    for numbers in engines(deeds, 1000):
        first, fresh = numbers.follow(0, np.array([0, 1, 2]))
        assert fresh.tolist() == [0, 1, 2]
        numbers.done(first)
        same, fresh = numbers.follow(1, np.array([1, 0, 2]))
        assert same.tolist() == first.tolist() and not len(fresh)
        early, fresh = numbers.follow(1, np.array([1, 2, 0]))
        assert fresh.tolist() == [2] and early[2] != first[2]


def test_what_an_effect_left_in_two_places_is_found_in_both() -> None:
    first, second = Span(0, 0, 8), Span(1, 0, 8)
    deeds = [Deed("work", (), (first, second)), Deed("work", (first,)), Deed("work", (second,))]
    for numbers in engines(deeds, 1000):
        here = AsRecorded(deeds)
        computed = numbers.follow(0, np.arange(3))[0].tolist()
        assert numbers.carry_out(np.array(computed[:1]), here.effects, here.memory) == 1
        made = here.memory[:16].tobytes()
        here.memory[:16] = 0
        assert [numbers.give(reader, here.memory) for reader in computed[1:]] == [NONE, NONE]
        assert here.memory[:16].tobytes() == made


def test_where_a_block_ends_within_another_that_one_is_as_it_was_at_first() -> None:
    """The last block lies over the beginning of the one before it, and nobody touches it."""
    for numbers in engines([Deed("work", (Span(3, 0, 8),))], 1000):
        memory = np.zeros(AREA, dtype=np.uint8)
        computed, _ = numbers.follow(2, np.arange(1))
        assert numbers.give(int(computed[0]), memory) == NONE
        assert memory[24:32].tolist() == [36, 37, 38, 39, 28, 29, 30, 31]


def test_what_was_not_used_for_longest_goes_first() -> None:
    deeds = [*(Deed("work", (), (Span(block, 0, 8),)) for block in range(3)), Deed("work", (Span(0, 0, 8),), ())]
    for numbers in engines(deeds, 16):
        memory = np.arange(AREA, dtype=np.uint8)
        one, other, third, reader = numbers.follow(0, np.array([0, 1, 2, 3]))[0].tolist()
        numbers.keep(one, memory)
        numbers.keep(other, memory)
        assert numbers.give(reader, memory) == NONE
        numbers.keep(third, memory)  # there is room for two
        assert numbers.give(reader, memory) == NONE and numbers.held == 16
        numbers.keep(other, memory)
        numbers.keep(third, memory)
        numbers.keep(one, memory)
        assert numbers.give(reader, memory) == NONE


# -- times and order ---------------------------------------------------------------------------------------


@examples(100)
@given(st.data())
def test_times_are_the_longest_ways(data: st.DataObject) -> None:
    size = data.draw(st.integers(1, 30))
    preds = [
        tuple(data.draw(st.lists(st.integers(0, node - 1), max_size=6, unique=True))) if node else ()
        for node in range(size)
    ]
    costs = np.array(data.draw(st.lists(st.integers(0, 9), min_size=size, max_size=size)), dtype=np.int64)
    begin = data.draw(st.integers(0, size))
    waiting = Waiting(preds)
    expected: list[int] = []
    for node in range(size):
        expected.append(max((expected[pred] for pred in preds[node]), default=0) + int(costs[node]))
    before = np.array([*expected[:begin], *[-1] * (size - begin)], dtype=np.int64)
    assert waiting.in_python(costs, begin, before).tolist() == expected
    assert waiting.times(costs, begin, before).tolist() == expected
    assert before.tolist()[begin:] == [-1] * (size - begin)


@examples(100)
@given(st.lists(st.integers(0, 5), max_size=40), st.randoms(use_true_random=False))
def test_what_is_at_one_time_comes_in_the_order_of_issue(when: list[int], random: Any) -> None:
    order = list(range(len(when)))
    random.shuffle(order)
    nearly, moments = np.array(order, dtype=np.int64), np.array(when, dtype=np.int64)
    for engine in ("python", "native"):
        with pytest.MonkeyPatch.context() as changed:
            changed.setenv(VARIABLE, engine)
            found = ordered(moments, nearly)
        assert found.tolist() == sorted(range(len(when)), key=lambda place: (when[place], place))
        assert nearly.tolist() == order
