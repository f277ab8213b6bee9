"""Small programs with races that real code has had: every search finds them, and nothing in their fixed versions."""

from __future__ import annotations

from functools import cache
from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamrace.fuzz.confirm import checksums
from streamrace.fuzz.search import Execution, Search
from streamrace.fuzz.search.directed import Directed
from streamrace.fuzz.search.pct import Pct
from streamrace.fuzz.search.random_timings import RandomTimings
from streamrace.fuzz.strategy import stream_timings
from streamrace.fuzz.subject import Subject
from streamrace.replay.record import record
from streamrace.scenarios.textbook import TEXTBOOK
from streamrace.trace.records import Launch
from tests.examples import examples
from tests.fuzz.first import first_divergence

SEARCHES: tuple[Search, ...] = (RandomTimings(), Pct(1), Pct(2), Directed())


@cache
def racing(name: str) -> Subject:
    return Subject(record(TEXTBOOK[name].program))


@cache
def fixed(name: str) -> Subject:
    return Subject(record(TEXTBOOK[name].fixed))


def _what(execution: Execution) -> object:
    order = None if execution.order is None else execution.order.tolist()
    return execution.deviations, order, execution.verdict.wrong


@pytest.mark.parametrize("name", TEXTBOOK)
def test_they_race_and_do_not_show_it(name: str) -> None:
    assert racing(name).races
    assert not racing(name).run().diverged
    assert not fixed(name).races
    assert TEXTBOOK[name].description.endswith(".")


def test_memory_that_is_freed_too_early_is_touched_by_its_next_owner() -> None:
    (race,) = racing("freed-early").races
    assert (race.kind, race.first.kernel, race.second.kernel) == ("reused", "aten::copy_", "aten::zero_")


@pytest.mark.parametrize("name", TEXTBOOK)
def test_directed_finds_each_with_its_first_timing(name: str) -> None:
    assert first_divergence(Directed(), racing(name), 0, 1) == 1


def test_directed_ends() -> None:
    found = Directed().timings(racing("torn-snapshot"))
    assert [len(one.deviations or ()) for one in found] == [1, 1, 2]


@pytest.mark.parametrize("search", SEARCHES, ids=lambda search: search.name)
@pytest.mark.parametrize("name", TEXTBOOK)
def test_nothing_is_found_in_fixed_programs(name: str, search: Search) -> None:
    assert first_divergence(search, fixed(name), 0, 50) is None


@pytest.mark.parametrize("search", SEARCHES, ids=lambda search: search.name)
def test_the_same_seed_gives_the_same(search: Search) -> None:
    subject, again = racing("overwritten-buffer"), Subject(record(TEXTBOOK["overwritten-buffer"].program))
    once = [_what(one) for one in islice(search.timings(subject, 5), 10)]
    assert once == [_what(one) for one in islice(search.timings(again, 5), 10)]
    if search.name != "directed":
        assert once != [_what(one) for one in islice(search.timings(subject, 6), 10)]


def test_each_execution_is_made_when_it_is_asked_for() -> None:
    subject = racing("missing-wait")
    before = subject.executions
    found = RandomTimings().timings(subject, 0)
    assert subject.executions == before
    next(found)
    assert subject.executions == before + 1


# -- a replay beside the program itself --------------------------------------------------------------------------


@examples(40)
@given(st.sampled_from(sorted(TEXTBOOK)), st.data())
def test_times_and_values_of_a_replay_are_those_of_running_again(name: str, data: st.DataObject) -> None:
    subject = racing(name)
    deviations = data.draw(stream_timings(subject))
    again = record(TEXTBOOK[name].program, subject.live_timing(deviations))
    graph = subject.replayer.graph
    times = graph.times(subject.timing(deviations))
    told = {(0, one.op): one.end for one in again.records[0] if isinstance(one, Launch)}
    assert {key: times[node] for key, node in graph.ends.items()} == told
    outcome = subject.replayer.run(subject.timing(deviations))
    if outcome.departure is None:
        assert dict(zip(subject.replayer.looks, outcome.checksums, strict=True)) == checksums(again)
