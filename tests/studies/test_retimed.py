"""Recorded once and timed anew, a job takes the time that it takes when it is rehearsed anew."""

from __future__ import annotations

from pathlib import Path

import pytest

from studies.rehearsed import Rehearsed, rehearse
from studies.retimed import Retimer
from tests.studies.small import small

NETWORKS = (1.0, 400.0)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Rehearsed:
    folder = tmp_path_factory.mktemp("recorded")
    return rehearse(small(folder, fix="none"), folder, answers=False, examples=None)


def shown(found: Rehearsed) -> list[tuple[int, int, int]]:
    return [(race.occurrences, race.manifested, race.slack_ns) for race in found.races]


def test_as_recorded_it_is_what_was_recorded(recorded: Rehearsed) -> None:
    again = Retimer(recorded.folder / "trace", recorded.races).at()
    assert again.step_ns == recorded.step.time
    assert again.races == recorded.races
    assert len(again.races) == 2


@pytest.mark.parametrize("network", NETWORKS)
def test_on_another_network_it_is_what_a_fresh_dry_run_gives(
    recorded: Rehearsed, network: float, tmp_path: Path
) -> None:
    again = Retimer(recorded.folder / "trace", recorded.races).at(network=network)
    fresh = rehearse(small(tmp_path, fix="none", network=network), tmp_path, answers=False, examples=None)
    assert again.step_ns == fresh.step.time
    assert [(race.occurrences, race.manifested, race.slack_ns) for race in again.races] == shown(fresh)


def test_what_deepspeed_asks_costs_microseconds(recorded: Rehearsed, tmp_path: Path) -> None:
    """A dry run in which queries are answered: other host waits, the same step but for what asking and waiting take."""
    answered = rehearse(small(tmp_path, fix="none"), tmp_path, examples=None)
    asks = 8 * recorded.operations
    assert abs(answered.step.time - recorded.step.time) < asks * 1000
    assert answered.step.time == pytest.approx(recorded.step.time, rel=0.02)
    assert [race.second for race in answered.races] == [race.second for race in recorded.races]
