"""How close two accesses came, in words."""

from __future__ import annotations

import pytest

from reports.text import closeness
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
