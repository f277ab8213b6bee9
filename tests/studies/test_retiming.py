"""Recorded once and timed anew, a job takes the time that it takes when it is rehearsed anew."""

from __future__ import annotations

from pathlib import Path

import pytest

from streamrace.frameworks.deepspeed.fixes import Fix
from streamrace.scenarios.job import job
from streamrace.studies import sweep
from streamrace.studies.dry_run import Rehearsed, rehearse
from streamrace.studies.retiming import Retimed, Retimer
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


def test_the_hosts_own_code_takes_as_long_on_another_network(tmp_path: Path) -> None:
    folders = recorded, again = tmp_path / "recorded", tmp_path / "again"
    for folder in folders:
        folder.mkdir()
    host = {"fix": "none", "host": "epyc-7003"}
    found = rehearse(small(recorded, **host), recorded, answers=False, examples=None)
    fresh = rehearse(small(again, **host, network=NETWORKS[1]), again, answers=False, examples=None)
    timed = Retimer(recorded / "trace", found.races)
    assert timed.at().step_ns == found.step.time
    assert timed.at(network=NETWORKS[1]).step_ns == fresh.step.time != found.step.time


def test_what_deepspeed_asks_costs_microseconds(recorded: Rehearsed, tmp_path: Path) -> None:
    """A dry run in which queries are answered: other host waits, the same step but for what asking and waiting take."""
    answered = rehearse(small(tmp_path, fix="none"), tmp_path, examples=None)
    retimed = Retimer(recorded.folder / "trace", recorded.races).at()
    assert 0 < retimed.asking_ns < 0.05 * retimed.step_ns
    as_good_as(answered, recorded, retimed)


def as_good_as(single: Rehearsed, recorded: Rehearsed, retimed: Retimed) -> None:
    """What the sweep says of a row against ``streamrace dry`` of that row alone: all but what hangs on the answers."""
    assert abs(single.step.time - retimed.step_ns) <= retimed.asking_ns
    assert (single.memory.peak, single.memory.kinds) == (recorded.memory.peak, recorded.memory.kinds)
    assert single.traffic == recorded.traffic
    assert (single.operations, single.flops, single.parameters) == (
        recorded.operations, recorded.flops, recorded.parameters,
    )  # fmt: skip
    assert single.unexercised == recorded.unexercised
    told, more = ({(one.kind, one.first, one.second): one.occurrences for one in races} for races in (
        single.races, retimed.races,
    ))  # fmt: skip
    assert told.keys() == more.keys()
    assert all(told[race] <= more[race] for race in told)


def points(folder: Path) -> list[sweep.Point]:
    return sweep.points(small(folder), (1, 4), (Fix.NONE, Fix.STREAM_SYNC))


@pytest.mark.parametrize(
    ("number", "network"),
    [
        (3, 400.0),  # the host is what takes the time
        *(pytest.param(number, network, marks=pytest.mark.wide)
          for number in range(6) for network in (1.0, 25.0, 400.0)),
    ],
)  # fmt: skip
def test_a_row_of_the_sweep_is_a_dry_run_of_that_row(number: int, network: float, tmp_path: Path) -> None:
    """Recorded as it is it has every figure, bit for bit; answered it has all but what the row says."""
    point = points(tmp_path)[number]
    (row,) = sweep.rows_of(point, networks=(network,), folder=tmp_path / "row")
    alone = sweep.Point(point.configuration, point.job.model_copy(update={"network": network}))
    assert sweep.rows_of(alone, networks=(network,), folder=tmp_path / "alone") == [row]

    single = rehearse(alone.job, tmp_path / "single", examples=None)
    assert abs(single.step_s - row["step_s"]) <= row["asking_us"] / 1e6 * (1 + 1e-9)
    assert (single.memory.peak / (1 << 30), single.fits) == (row["memory_gib"], row["fits"])
    assert "; ".join(single.unexercised) == row["unexercised"]
    assert len(single.races) == row["races"]
    assert sum(race.occurrences for race in single.races) <= row["pairs"]


@pytest.mark.wide
def test_where_the_gpu_takes_the_time_a_row_is_what_a_dry_run_says(tmp_path: Path) -> None:
    """To the nanosecond, answered or not."""
    large = {"model": "llama-2-7b", "nodes": 8, "hpz": 8, "checkpointing": True, "micro_batch": 1, "fix": "none"}
    recorded = rehearse(job(**large), tmp_path / "recorded", answers=False, examples=None)
    retimer = Retimer(tmp_path / "recorded" / "trace", recorded.races)
    for network in (12.5, 400.0):
        single = rehearse(job(**large, network=network), tmp_path / f"{network}", examples=None)
        again = retimer.at(network=network)
        assert again.step_ns == single.step.time
        assert [(race.occurrences, race.manifested, race.slack_ns) for race in again.races] == shown(single)
        as_good_as(single, recorded, again)
