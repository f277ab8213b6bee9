"""The searches find what is there, and nothing where nothing is."""

from collections.abc import Callable
from itertools import islice

import pytest

from fuzz.search import Execution, Search
from fuzz.search.directed import Directed
from fuzz.search.pct import Pct
from fuzz.search.random_timings import RandomTimings
from fuzz.subject import Subject
from repro.replay.record import record
from scenarios.textbook import TEXTBOOK

SEARCHES: tuple[Search, ...] = (RandomTimings(), Pct(1), Pct(2), Directed())


def _first(search: Search, subject: Subject, seed: int, most: int) -> int | None:
    """How many executions the first divergence takes."""
    found = enumerate(islice(search.timings(subject, seed), most), 1)
    return next((number for number, one in found if one.verdict.diverged), None)


def _what(execution: Execution) -> object:
    order = None if execution.order is None else execution.order.tolist()
    return execution.deviations, order, execution.verdict.wrong


@pytest.mark.parametrize("name", TEXTBOOK)
def test_the_textbook_programs_race_and_do_not_show_it(name: str) -> None:
    subject, fixed = Subject(record(TEXTBOOK[name].program)), Subject(record(TEXTBOOK[name].fixed))
    assert subject.races
    assert not subject.run().diverged
    assert not fixed.races
    assert TEXTBOOK[name].description.endswith(".")


@pytest.mark.parametrize("name", TEXTBOOK)
def test_directed_finds_textbook_races_with_its_first_timing(name: str) -> None:
    assert _first(Directed(), Subject(record(TEXTBOOK[name].program)), 0, 1) == 1


def test_directed_finds_the_race_of_hpz_with_its_first_timing(subject: Callable[[str], Subject]) -> None:
    assert _first(Directed(), subject("none"), 0, 1) == 1


def test_directed_tries_every_race_then_other_examples_then_two_at_once(subject: Callable[[str], Subject]) -> None:
    deepspeed = subject("none")
    executed = [one.deviations or () for one in islice(Directed().timings(deepspeed), 20)]
    assert len({frozenset(deviations) for deviations in executed}) == 20
    lengths = [len(deviations) for deviations in executed]
    assert lengths == sorted(lengths)
    assert lengths[len(deepspeed.races) - 1] == 1
    assert lengths[-1] == 2


def test_directed_ends() -> None:
    subject = Subject(record(TEXTBOOK["torn-snapshot"].program))
    assert [len(one.deviations or ()) for one in Directed().timings(subject)] == [1, 1, 2]


@pytest.mark.parametrize("search", [RandomTimings(), Pct(1), Pct(2)], ids=lambda search: search.name)
def test_others_find_the_race_of_hpz(subject: Callable[[str], Subject], search: Search) -> None:
    first = _first(search, subject("none"), 0, 30)
    assert first is not None


@pytest.mark.parametrize("search", SEARCHES, ids=lambda search: search.name)
@pytest.mark.parametrize("name", TEXTBOOK)
def test_nothing_is_found_in_fixed_programs(name: str, search: Search) -> None:
    assert _first(search, Subject(record(TEXTBOOK[name].fixed)), 0, 50) is None


@pytest.mark.parametrize("search", SEARCHES, ids=lambda search: search.name)
def test_nothing_is_found_in_fixed_deepspeed(subject: Callable[[str], Subject], search: Search) -> None:
    """500 timings, drawn otherwise, are in test_ordered.py (wide)."""
    assert _first(search, subject("stream-sync"), 0, 20) is None


@pytest.mark.parametrize("search", SEARCHES, ids=lambda search: search.name)
def test_the_same_seed_gives_the_same(search: Search) -> None:
    subject = Subject(record(TEXTBOOK["overwritten-buffer"].program))
    again = Subject(record(TEXTBOOK["overwritten-buffer"].program))
    once = [_what(one) for one in islice(search.timings(subject, 5), 10)]
    assert once == [_what(one) for one in islice(search.timings(again, 5), 10)]
    if search.name != "directed":
        assert once != [_what(one) for one in islice(search.timings(subject, 6), 10)]


def test_each_execution_is_made_when_it_is_asked_for() -> None:
    subject = Subject(record(TEXTBOOK["missing-wait"].program))
    before = subject.executions
    found = RandomTimings().timings(subject, 0)
    assert subject.executions == before
    next(found)
    assert subject.executions == before + 1
