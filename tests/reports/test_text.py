"""How close two accesses came, in words; and what a witness's token stands for."""

from __future__ import annotations

import pytest

from streamrace.reports.text import closeness, reversal
from tests.detectors.story import Story


@pytest.mark.parametrize(
    ("ends", "said"),
    [(153_210, "closest: 143.2 us apart"), (10_000, "closest: 0 ns apart"), (2_000, "reversed by up to 8 us")],
)
def test_how_close_the_two_came(ends: int, said: str) -> None:
    story = Story()
    compute, gather = story.streams("compute", "gather")
    a = story.block()
    compute.writes(a, time=(0, 10_000))
    gather.reads(a, time=(1_000, ends))
    assert closeness(story.races()[0].slack_ns) == said


@pytest.mark.parametrize(
    ("token", "said"),
    [
        ("t1,main,fix=none", "as recorded, the two accesses come the other way round already"),
        ("t1,hpz", "as recorded, the two accesses come the other way round already"),
        ("t1,hpz,x2:stream:compute", "the two accesses the other way round"),
        ("t1,hpz,fix=none,0/1.1/forward/a/copy_/1+64us", "the two accesses the other way round"),
        ("", "the two accesses the other way round"),
    ],
)
def test_a_token_without_a_deviation_is_said_to_be_the_recorded_timing(token: str, said: str) -> None:
    assert reversal(token) == said
