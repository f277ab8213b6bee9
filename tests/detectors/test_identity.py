"""Which race is which: by lines within a run, by functions from one version of a program to the next."""

from __future__ import annotations

from story import Story

from streamrace.detectors import Race
from streamrace.detectors.identity import identity, lasting


def race(first: int = 10, second: int = 20, *, made: str = "gather") -> Race:
    story = Story()
    compute, gather = story.streams("compute", made)
    block = story.block()
    compute.writes(block, at=first)
    gather.reads(block, at=second)
    (found,) = story.races()
    return found


def test_lines_and_streams_tell_races_of_a_run_apart() -> None:
    assert identity(race()) == identity(race())
    assert len({identity(race()), identity(race(second=21)), identity(race(made="another"))}) == 3


def test_a_stream_that_a_loop_creates_anew_is_the_first_one() -> None:
    assert identity(race(made="stream 7, made where stream 2 was")) == identity(race(made="stream 2"))
    assert identity(race(made="stream 7")) != identity(race(made="stream 2"))


def test_a_race_stays_the_same_where_its_lines_move() -> None:
    assert lasting(race()) == lasting(race(first=11, second=25, made="another"))
    assert lasting(race(), file=lambda name: f"mine/{name}").first[2] != lasting(race()).first[2]
