"""Each wait of the engine carries load: without it there is a race, and with all of them there is none.

A dry run tells: happens-before needs no values, and what rank 0 orders, all ranks order.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from streamrace.detectors import Race, RaceDetector
from streamrace.scenarios.sharding.strategy import ShardingError, legal, strategy
from streamrace.scenarios.sharding.synchronisations import Sync, of_engine, synchronisations
from streamrace.scenarios.sharding.topology import Topology
from streamrace.trace.records import TraceRecord
from tests.sharding.training import engine, forked, net, rehearsal, rehearsed, train


def races(records: list[TraceRecord]) -> list[Race]:
    detector = RaceDetector()
    detector.feed(0, records)
    detector.finish()
    return detector.races


def test_with_all_waits_in_place_no_strategy_has_a_race(tmp_path: Path) -> None:
    """Groups of one, of two and of all; with clipping and without."""

    def found() -> dict[str, int]:
        return {
            f"{one}, groups of {group}, {how}": len(races(rehearsed(one, group=group, **how)))  # type: ignore[arg-type]
            for one in legal()
            for group, how in ((1, {}), (2, {"clip": 1.0}), (4, {}))
        }

    assert {what: count for what, count in forked(found, tmp_path).items() if count} == {}


def test_without_any_one_of_its_waits_each_strategy_has_one(tmp_path: Path) -> None:
    def found() -> list[list[object]]:
        return [
            [str(one), str(wait), len(races(rehearsed(one, without={wait})))]
            for one in legal()
            for wait in sorted(of_engine(one))
        ]

    counts = forked(found, tmp_path)
    assert len(counts) == sum(len(of_engine(one)) for one in legal())
    assert [what for what in counts if not what[-1]] == []


def test_the_race_is_where_the_wait_was(tmp_path: Path) -> None:
    """Parameters are computed with before they have arrived, as in hpZ's own race."""

    def found() -> list[list[str]]:
        return [
            [race.kind, race.first.kernel, race.first.issuer, race.second.stream]
            for race in races(rehearsed(strategy("IIG"), without={Sync.GATHER_BEFORE_USE}))
        ]

    seen = forked(found, tmp_path)
    assert {race[1] for race in seen} == {"nccl::all_gather"}
    assert {race[2] for race in seen} == {"gather"}
    assert {race[3] for race in seen} == {"compute"}


def test_a_wait_that_the_strategy_does_not_have_changes_nothing(tmp_path: Path) -> None:
    """Replicated parameters are not gathered: there is no use that a gather could overwrite."""
    wait = Sync.USE_BEFORE_GATHER
    assert wait not in of_engine(strategy("NIG"))
    assert forked(lambda: len(races(rehearsed(strategy("NIG"), without={wait}))), tmp_path) == 0


def test_names_that_do_not_exist_are_refused() -> None:
    with pytest.raises(ShardingError, match="there is no synchronisation 'prayer': choose of update-before-gather, "):
        synchronisations(["prayer"])


def test_a_plain_cpu_has_no_streams_to_take_a_wait_from() -> None:
    with pytest.raises(ShardingError, match="on a plain CPU, which has no streams"):
        engine(net(), strategy("IIG"), alone(), None, without={Sync.GATHER_BEFORE_USE})


def alone() -> Topology:
    """Of one rank: no group talks."""
    return Topology(0, 1, 1, None, None, None)  # type: ignore[arg-type]


def test_a_rank_alone_trains_without_any_race(tmp_path: Path) -> None:
    def found() -> int:
        with rehearsal(1) as (device, records):
            train(engine(net(), strategy("GGG"), Topology.of(1), device), 0, steps=2)
        return len(races(records))

    assert forked(found, tmp_path) == 0
