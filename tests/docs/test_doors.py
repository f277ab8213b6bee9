"""The three doors of the documentation, followed word for word: see stories.py for how to write their output anew."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.docs.stories import REWRITE, Story
from tests.warm import ROOT, shell, with_simulated_gpu

README = ROOT / "README.md"
HOW_TO = ROOT / "docs" / "how-to"
CURE = "<!-- the cure stands above -->"


def test_the_readme_shows_what_a_run_prints_and_draws(tmp_path: Path) -> None:
    Story(README, tmp_path).follow()
    arguments = ("-m", "streamrace", "explain", "runs/train", "1", "--report", "--output", "page")
    assert with_simulated_gpu().run(*arguments, folder=tmp_path, environment=shell()).returncode == 0
    drawn = (tmp_path / "page" / "timings.svg").read_bytes()
    picture = ROOT / "docs" / "assets" / "two-timings.svg"
    if REWRITE:
        picture.write_bytes(drawn)
    assert picture.read_bytes() == drawn


def test_a_changed_stream_is_followed_from_the_change_to_a_test(tmp_path: Path) -> None:
    story = Story(HOW_TO / "changed-stream.md", tmp_path)
    story.follow()
    assert story.lines_until_the_cure() <= 25


@pytest.mark.release
@pytest.mark.timeout(1200)
def test_a_nan_is_followed_from_the_loss_to_the_release_that_cures_it(tmp_path: Path) -> None:
    story = Story(HOW_TO / "nan.md", tmp_path)
    story.follow()
    assert story.lines_until_the_cure() <= 25


@pytest.mark.wide
@pytest.mark.timeout(600)
def test_a_cluster_is_planned(tmp_path: Path) -> None:
    Story(HOW_TO / "fit-and-pay.md", tmp_path, warm=False).follow()


@pytest.mark.parametrize("page", ["nan.md", "changed-stream.md"])
def test_at_most_three_commands_lead_to_the_cure(page: str) -> None:
    before, mark, _ = (HOW_TO / page).read_text(encoding="utf-8").partition(CURE)
    assert mark and 1 <= len(re.findall(r"^streamrace .*", before, re.MULTILINE)) <= 3
