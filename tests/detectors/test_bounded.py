"""What judging costs: so much an access, whatever its layout and whoever had its memory before.

Counted in steps (accesses that are visited, runs of bytes that are looked at) and in entries that are remembered, not
in seconds. Memory that nothing ever writes from end to end is the hard case: nothing there covers what was before.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamrace.detectors.native.engine import NativeHappensBefore
from streamrace.detectors.order.access_history import Accesses, AccessHistory, Entry
from streamrace.detectors.order.happens_before import HappensBefore
from streamrace.trace.records import Launch
from tests.detectors.story import Named, Story, View
from tests.detectors.test_reuse_oracle import Arena
from tests.examples import examples

MOST_VISITED = 250  # by an access, on average
MOST_REMEMBERED = 1_500
SIZE = 192


class Steps:
    """Counts what the engine in Python visits, and ends it where it is too much: else a test would never end."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count, self.most = 0, 0
        for name in ("search", "everything"):
            monkeypatch.setattr(AccessHistory, name, self._counting(getattr(AccessHistory, name)))

    def _counting(self, method: Callable[..., list[Entry]]) -> Callable[..., list[Entry]]:
        def counted(*arguments: int) -> list[Entry]:
            found = method(*arguments)
            self.count += len(found)
            assert self.count <= self.most
            return found

        return counted


@pytest.fixture(scope="module")
def steps() -> Iterator[Steps]:
    with pytest.MonkeyPatch.context() as patch:
        yield Steps(patch)


def comb(draw: random.Random, block: View) -> View:
    """Every so many bytes of a part of a block."""
    lo, stride, itemsize = draw.randrange(block.hi), draw.randrange(2, 24), draw.choice([1, 1, 2])
    count = (block.hi - lo - itemsize) // stride + 1
    if count < 2:
        return block[lo : block.hi]
    return block.strided(lo, itemsize, (draw.randrange(2, count + 1),), (stride,))


def part(draw: random.Random, block: View) -> View:
    lo = draw.randrange(block.hi)
    return block[lo : draw.randrange(lo, block.hi) + 1]


def views(move: str, draw: random.Random, block: View) -> list[View]:
    if move == "gather":  # some elements
        return [block[at : at + 1] for at in draw.sample(range(block.hi), min(block.hi, 6))]
    return [comb(draw, block) if move == "comb" else part(draw, block)]


def told(draw: random.Random, streams: int, moves: list[str], ops: int) -> Story:
    """A program of so many moves, drawn from these."""
    story = Story()
    cast = story.streams(*"abc"[:streams])
    arena = Arena(story, cast[0], SIZE, [SIZE // 3, SIZE // 2])
    for _ in range(ops):
        move, which = draw.choice(moves), draw.randrange(SIZE)
        if move == "free":
            arena.free(which, [])
        elif move == "allocate":
            arena.allocate(draw.randrange(SIZE), draw.randrange(1, SIZE))
        elif move == "order":
            draw.choice(cast).waits_for(draw.choice(cast))
        elif (place := arena.chosen(which)) is not None:
            draw.choice(cast).runs(**{draw.choice(["reads", "writes"]): views(move, draw, place[1])})
    return story


def bounded(story: Story, steps: Steps, most: int = 2 * MOST_VISITED) -> None:
    """``most``: visits of the native engine for each access."""
    accesses = 1 + sum(len(one.reads) + len(one.writes) for one in story.trace if isinstance(one, Launch))
    steps.count, steps.most = 0, MOST_VISITED * accesses
    python, native = HappensBefore(lambda *_: Named()), NativeHappensBefore(lambda *_: Named())
    python.feed(0, story.trace)
    native.feed(0, story.trace)
    steps.most = sys.maxsize
    rank = python._followers[0].rank
    histories: list[Accesses] = list(rank._blocks.values())
    histories += [one.inherited for one in rank._blocks.values() if one.inherited is not None]
    histories += [each for several in rank._freed._blocks.values() for each in several]
    left = sum(len(each.reads.everything()) + len(each.writes.everything()) for each in histories)
    assert native.work <= most * accesses + len(story.trace)
    assert left <= MOST_REMEMBERED


MOVES = ["comb", "comb", "comb", "gather", "part", "free", "allocate", "allocate", "order"]


@examples(25)
@given(
    seed=st.integers(0, 1 << 32),
    streams=st.integers(1, 3),
    moves=st.lists(st.sampled_from(MOVES), min_size=3, max_size=12),
    ops=st.sampled_from([300, 1000]),
)
def test_of_any_program_each_access_costs_the_same(
    steps: Steps, seed: int, streams: int, moves: list[str], ops: int
) -> None:
    bounded(told(random.Random(seed), streams, moves, ops), steps)


@pytest.mark.parametrize("moves", [("comb",), ("comb", "comb", "comb", "free", "allocate", "allocate")])
def test_of_a_long_one_too(steps: Steps, moves: tuple[str, ...]) -> None:
    bounded(told(random.Random(1), 1, list(moves), 4000), steps, most=MOST_VISITED)


def test_what_nothing_newer_touches_stays_however_much_comes_after_it() -> None:
    """The last element of each row is read once, by the oldest of many reads; the others often, by all the rest."""
    story = Story()
    compute, gather = story.streams("compute", "gather")
    matrix = story.block(1024, on=compute)
    first = gather.reads(matrix.strided(7, 1, (80,), (8,)))
    for read in range(300):
        gather.reads(matrix.strided(read % 7, 1, (100 - read // 7 % 30,), (8,)))
    compute.writes(matrix.strided(7, 1, (80,), (8,)))
    story.assert_race("read-write gather compute")
    assert [one.first.op for race in story.races() for one in race.examples] == [first]
