"""How close two accesses came, and what a token stands for, in words; and who shows the sentences about a race."""

from __future__ import annotations

from pathlib import Path

import pytest
from markupsafe import escape

from streamrace.detectors.witness import Witness
from streamrace.reports.data.loading import load
from streamrace.reports.pages import bundle, markdown, run_page
from streamrace.reports.screen.races import race_text
from streamrace.reports.text import closeness, race
from tests.detectors.story import Story
from tests.reports.run_folders import run_folder


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
        ("t1,main,fix=none", "in the timing as recorded"),
        ("t1,hpz", "in the timing as recorded"),
        ("t1,hpz,x2:stream:compute", "in another timing"),
        ("t1,hpz,fix=none,0/1.1/forward/a/copy_/1+64us", "in another timing"),
        ("t1,0/0/aten::fill_/1+8us", "in another timing"),  # of a user's program: it has no scenario's name
    ],
)
def test_a_witness_without_a_deviation_is_the_recorded_timing(token: str, said: str) -> None:
    assert race.witness(1, Witness(token, "")) == (f"Race 1 shows {said}", f"streamrace replay {token}")


def test_each_report_shows_all_sentences_about_a_race(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = race.of_race
    monkeypatch.setattr(race, "of_race", lambda *one, **given: [*said(*one, **given), "It is new."])
    run = load(run_folder(tmp_path / "it"))
    found = run.file.races[0]
    screen, page, issue = str(race_text("Race 1", found)), run_page.page([run]), bundle.report([run])
    for sentence in race.of_race(found):
        assert sentence in screen and markdown.sentence(sentence) in issue
        assert str(escape(sentence)).partition(" (")[0] in page.replace("<wbr>", "")
