"""A campaign finds the race of hpZ, makes it small, remembers it, and finds nothing where nothing is."""

import io
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from rich.console import Console

from streamrace.fuzz.campaign import CampaignResult, Share, Trial, campaign
from streamrace.fuzz.subject import Subject
from streamrace.fuzz.verdict import ReplayVerdict
from streamrace.replay.deviations import Deviation, OperationDelay
from streamrace.replay.tokens import Token
from streamrace.reports.screen import timings

US = 1000
Subjects = Callable[[str], Subject]


@pytest.fixture(scope="module")
def found(subject: Subjects) -> CampaignResult:
    return campaign(subject("none"), examples=40, seed=1)


def test_a_failing_timing_is_found_and_made_small(subject: Subjects, found: CampaignResult) -> None:
    assert found.first is not None
    assert found.first + found.shrinking <= 200
    assert found.smallest is not None
    assert 1 <= len(found.smallest) <= 2
    assert found.minimal
    assert subject("none").run(found.smallest).diverged
    for less in combinations(found.smallest, len(found.smallest) - 1):
        assert not subject("none").run(less).diverged
    assert not found.from_database
    assert not found.interrupted


@pytest.mark.parametrize("seed", [2, pytest.param(3, marks=pytest.mark.wide)])
def test_within_200_executions_whatever_the_seed(subject: Subjects, seed: int) -> None:
    subject("none").executions = 0
    found = campaign(subject("none"), examples=25, seed=seed)
    assert found.smallest is not None
    assert len(found.smallest) <= 2
    assert found.minimal
    assert subject("none").executions == found.timings + found.shrinking <= 200


def test_the_fix_leaves_nothing_to_find(subject: Subjects) -> None:
    fixed = campaign(subject("stream-sync"), examples=60, seed=1)
    assert fixed.timings == 60
    assert not any(one.verdict.diverged or one.verdict.departure for one in fixed.tried)
    assert (fixed.diverged, fixed.first, fixed.smallest, fixed.shrinking) == (0, None, None, 0)
    assert fixed.outcomes == 0


def test_the_table_and_the_data(found: CampaignResult) -> None:
    table = pd.DataFrame(found.rows())
    assert list(table.columns) == [
        "number", "deviations", "diverged", "wrong_values", "bad_numbers", "loss_difference", "first_wrong", "departed",
    ]  # fmt: skip
    assert list(table["number"]) == list(range(1, 41))
    assert table["diverged"].sum() == found.diverged > 0
    assert (table["diverged"] == (table["wrong_values"] > 0)).all()
    assert (table["diverged"] == (table["first_wrong"] != "")).all()
    for one, text in zip(found.tried, table["deviations"], strict=True):
        assert Token.parse(f"t1,hpz{',' if text else ''}{text}").deviations == one.deviations
    data = json.loads(json.dumps(found.as_dict(), allow_nan=False))
    assert data["timings"] == 40
    assert data["smallest"] == str(Token("hpz", {}, found.smallest or ())).removeprefix("t1,hpz,")


# -- on something small --------------------------------------------------------------------------------------


class Made:
    """A subject that diverges under a condition of one's own."""

    def __init__(self, small: Subject, condition: Callable[[tuple[Deviation, ...]], bool]) -> None:
        self.recording, self.operations = small.recording, small.operations
        self.streams, self.links, self.world = small.streams, small.links, small.world
        self.sharing = small.sharing
        self.condition = condition
        self.ran: list[tuple[Deviation, ...]] = []

    def run(self, deviations: tuple[Deviation, ...]) -> ReplayVerdict:
        self.ran.append(tuple(deviations))
        wrong = (0,) if self.condition(tuple(deviations)) else ()
        return ReplayVerdict(wrong, None, 0, float("nan") if wrong else 0.0, False, None)


@pytest.fixture
def made(small: Subject) -> Callable[[Callable[[tuple[Deviation, ...]], bool]], Any]:
    return lambda condition: Made(small, condition)


def two_late(timing: tuple[Deviation, ...]) -> bool:
    return len({one.operation for one in timing if isinstance(one, OperationDelay) and one.ns >= 100 * US}) >= 2


def test_the_race_of_a_small_program(small: Subject) -> None:
    found = campaign(small, examples=100)
    assert found.smallest is not None
    assert len(found.smallest) == 1
    assert found.minimal


def test_the_same_seed_gives_the_same(made: Any) -> None:
    one, same, other = (campaign(made(two_late), examples=60, seed=seed) for seed in (5, 5, 6))
    assert one.as_dict() == same.as_dict()
    assert [each.deviations for each in one.tried] != [each.deviations for each in other.tried]


def test_no_timing_is_executed_twice(made: Any) -> None:
    subject = made(two_late)
    found = campaign(subject, examples=60)
    executed = [frozenset(one) for one in subject.ran]
    assert len(set(executed)) == len(executed) == found.timings + found.shrinking
    assert found.timings == 60
    assert found.smallest is not None
    assert {one.ns for one in found.smallest if isinstance(one, OperationDelay)} == {128 * US}
    assert len(found.smallest) == 2


def test_a_later_campaign_goes_on_from_what_was_found(made: Any, tmp_path: Path) -> None:
    first = campaign(made(two_late), examples=60, database=tmp_path)
    assert not first.from_database
    later = campaign(made(two_late), examples=60, seed=99, database=tmp_path)
    assert later.from_database
    assert later.first == later.reused == 1  # it was not drawn, so it says nothing about the part that diverges
    assert later.smallest is not None
    assert len(later.smallest) == 2
    assert later.minimal
    assert later.shrinking < first.shrinking
    healed = campaign(made(lambda timing: False), examples=20, database=tmp_path)
    assert (healed.from_database, healed.diverged) == (False, 0)
    assert not campaign(made(two_late), examples=1, database=tmp_path).from_database  # what is healed is forgotten


def test_the_database_keeps_programs_apart(made: Any, small: Subject, tmp_path: Path) -> None:
    campaign(made(two_late), examples=60, database=tmp_path)
    other = made(two_late)
    other.operations = other.operations[1:]
    assert not campaign(other, examples=1, database=tmp_path).from_database
    assert campaign(made(two_late), examples=1, database=tmp_path).from_database


@pytest.mark.parametrize("shrinking", [0, 1, 5, 20])
def test_shrinking_keeps_its_budget(made: Any, shrinking: int) -> None:
    subject = made(two_late)
    found = campaign(subject, examples=60, shrinking=shrinking)
    assert found.shrinking <= shrinking
    assert found.smallest is not None
    assert two_late(found.smallest)
    if shrinking == 0:
        assert not found.minimal


def test_seconds_end_it(made: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter(range(1000))
    monkeypatch.setattr("streamrace.fuzz.campaign.time.monotonic", lambda: next(now))
    found = campaign(made(two_late), examples=10_000, seconds=30)
    assert found.timings == 29
    assert not found.interrupted


def test_ctrl_c_leaves_what_is_known(made: Any) -> None:
    subject = made(two_late)

    def interrupted(timing: tuple[Deviation, ...]) -> bool:
        if len(subject.ran) == 45:
            raise KeyboardInterrupt
        return two_late(timing)

    subject.condition = interrupted
    found = campaign(subject, examples=1000)
    assert found.interrupted
    assert found.timings == 44
    assert found.diverged > 0
    assert found.smallest in [one.deviations for one in found.tried if one.verdict.diverged]
    assert not found.minimal


def test_an_error_comes_through_at_once_and_quietly(made: Any, capfd: pytest.CaptureFixture[str]) -> None:
    def breaks(timing: tuple[Deviation, ...]) -> bool:
        if timing:
            raise RuntimeError("the replay broke")
        return False

    subject = made(breaks)
    with pytest.raises(RuntimeError, match="the replay broke"):
        campaign(subject, examples=60)
    assert sum(map(bool, subject.ran)) == 1
    campaign(made(two_late), examples=60)
    assert capfd.readouterr() == ("", "")


def test_progress_is_told(made: Any) -> None:
    told: list[tuple[int, int]] = []
    found = campaign(made(two_late), examples=30, progress=lambda *numbers: told.append(numbers))
    assert [done for done, _ in told] == list(range(1, 31))
    assert told[-1] == (30, found.diverged)


def test_timings_that_go_wrong_alike_are_one_outcome(made: Any) -> None:
    """Drawn timings are varied from each other, so how many go wrong is no estimate of anything."""
    found = campaign(made(two_late), examples=60)
    assert found.diverged > 1 and found.outcomes == 1
    data = found.as_dict()
    assert data["outcomes"] == 1 and "interval" not in data


def test_what_two_workers_both_drew_counts_once_and_is_told(made: Any) -> None:
    subject = made(two_late)
    drawn = campaign(subject, examples=20).tried
    shares = Share(0, 20, None), Share(1, 20, None)

    def elsewhere() -> Iterator[tuple[Share, Trial]]:
        for one in drawn[:12]:
            yield shares[0], one
        for number, one in enumerate(drawn[8:], 1):
            yield shares[1], replace(one, number=number)

    found = campaign(subject, examples=24, elsewhere=elsewhere)
    assert (found.timings, found.twice) == (20, 4)
    console = Console(file=io.StringIO(), width=120)
    timings.campaign(console, "small", found, None)
    told = " ".join(console.file.getvalue().split())  # type: ignore[attr-defined]
    assert f"timings that diverged {found.diverged} of 20, in 1 way" in told
    assert "not counted again 4 timings that two workers drew" in told
    assert "confidence" not in told
