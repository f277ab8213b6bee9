"""Timings that share their work have the values of timings that are executed from nothing."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest

from streamrace.fuzz.campaign import campaign
from streamrace.fuzz.strategy import draw_timing
from streamrace.fuzz.subject import Subject
from streamrace.replay.numbering import Numbering
from streamrace.replay.replayer import ReplayOutcome
from streamrace.replay.sharing import SharingReplayer


def shown(outcome: ReplayOutcome) -> object:
    losses = sorted((look, repr(value)) for look, value in outcome.losses.items())
    return outcome.checksums, losses, sorted(outcome.bad.items()), outcome.departure, outcome.order.tobytes()


@pytest.mark.parametrize("fix", ["none", "event"])
@pytest.mark.parametrize("count", [4, pytest.param(300, marks=pytest.mark.wide)])
def test_every_bit_whatever_came_before(fix: str, count: int, subject: Callable[[str], Subject]) -> None:
    """Also where what one timing makes drives out what others made."""
    one, random = subject(fix), Random(f"shared {fix}")
    written = one.sharing.written
    sharing = [
        SharingReplayer(one.replayer),
        SharingReplayer(one.replayer, numbering=Numbering),
        SharingReplayer(one.replayer, kept=written),
    ]
    timings = [one.timing(draw_timing(random, one)) for _ in range(count)]
    for timing in timings + random.sample(timings, count // 4):  # some again
        expected = shown(one.replayer.run(timing))
        for those in sharing:
            assert shown(those.run(timing)) == expected
    assert not any(those.reason for those in sharing)
    assert sharing[0].shared == sharing[1].shared and sharing[0].computations == sharing[1].computations
    assert sharing[2].held <= written
    assert all(those.shared.none >= count // 4 for those in sharing)


def test_where_nothing_races_one_timing_answers_for_all(subject: Callable[[str], Subject]) -> None:
    one, random = subject("event"), Random(7)
    sharing = SharingReplayer(one.replayer)
    for _ in range(60):
        assert sharing.run(one.timing(draw_timing(random, one))).checksums == one.reference.checksums
    assert (sharing.shared.whole, sharing.shared.part, sharing.shared.none) == (0, 0, 60)
    assert sharing.shared.effects < 2 * len(one.replayer.graph.effects)  # the recorded one, which is tried out first


def test_timings_share_what_comes_before_their_first_difference(subject: Callable[[str], Subject]) -> None:
    one, random = subject("none"), Random(7)
    sharing = SharingReplayer(one.replayer)
    sharing.run()
    once = sharing.shared.effects
    for _ in range(60):
        sharing.run(one.timing(draw_timing(random, one)))
    assert sharing.shared.part > 1
    assert sharing.shared.effects - once < 0.9 * sharing.shared.part * once


def test_a_campaign_says_how_many_had_an_order_of_their_own(subject: Callable[[str], Subject]) -> None:
    one = Subject(subject("none").recording)
    found = campaign(one, examples=60, shrinking=1)
    assert found.timings == 60
    assert found.outcomes <= found.own == one.sharing.shared.whole + one.sharing.shared.part < 60
    assert found.as_dict()["own"] == found.own
