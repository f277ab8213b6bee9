"""The searches find the race of hpZ, and nothing where nothing is. Small programs: tests/fuzz/test_textbook.py."""

from collections.abc import Callable
from itertools import islice

import pytest

from streamrace.fuzz.search import Search
from streamrace.fuzz.search.directed import Directed
from streamrace.fuzz.search.pct import Pct
from streamrace.fuzz.search.random_timings import RandomTimings
from streamrace.fuzz.subject import Subject
from tests.fuzz.first import first_divergence

SEARCHES: tuple[Search, ...] = (RandomTimings(), Pct(1), Pct(2), Directed())


def test_directed_finds_the_race_of_hpz_with_its_first_timing(subject: Callable[[str], Subject]) -> None:
    assert first_divergence(Directed(), subject("none"), 0, 1) == 1


def test_directed_tries_every_race_then_other_examples_then_two_at_once(subject: Callable[[str], Subject]) -> None:
    deepspeed = subject("none")
    executed = [one.deviations or () for one in islice(Directed().timings(deepspeed), 20)]
    assert len({frozenset(deviations) for deviations in executed}) == 20
    lengths = [len(deviations) for deviations in executed]
    assert lengths == sorted(lengths)
    assert lengths[len(deepspeed.races) - 1] == 1
    assert lengths[-1] == 2


@pytest.mark.parametrize("search", [RandomTimings(), Pct(1), Pct(2)], ids=lambda search: search.name)
def test_others_find_the_race_of_hpz(subject: Callable[[str], Subject], search: Search) -> None:
    first = first_divergence(search, subject("none"), 0, 30)
    assert first is not None


@pytest.mark.parametrize(
    "search",
    [pytest.param(one, marks=pytest.mark.wide if one.name == "pct-1" else ()) for one in SEARCHES],
    ids=lambda search: search.name,
)
def test_nothing_is_found_in_fixed_deepspeed(subject: Callable[[str], Subject], search: Search) -> None:
    """500 timings, drawn otherwise, are in test_ordered.py (wide)."""
    assert first_divergence(search, subject("stream-sync"), 0, 20) is None
