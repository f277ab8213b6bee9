"""Why the race shows: pairs that do harm, one assumption changed at a time, and what another release does instead."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from streamrace.detectors import Occurrence, Race
from streamrace.detectors.order.races import Moment, Side
from streamrace.frameworks.deepspeed.fixes import Fix
from streamrace.frameworks.deepspeed.grafts import Graft
from streamrace.frameworks.deepspeed.releases import PINNED
from streamrace.scenarios.base import ScenarioError
from streamrace.studies import sweep as sweep_study
from streamrace.studies import why as study
from streamrace.studies.dry_run import rehearse
from streamrace.studies.harm import pairs_of
from streamrace.studies.retiming import Retimed, Retimer
from streamrace.trace.records import Access, Label, Launch, Phase, TraceRecord
from tests.studies.small import small

COPY = "aten::copy_"


def write(op: int, kernel: str = COPY, lo: int = 0, hi: int = 64) -> Launch:
    return Launch(op, 0, kernel, (), (Access(7, lo, hi),), 0, 0, 0, 1)


def race(copy: int, step: int) -> Race:
    """``copy`` races with an all-gather that is operation 100."""
    moments = [Moment(op, step, 1, "forward", 0, 1) for op in (copy, 100)]
    one = Occurrence(0, 7, 0, 64, moments[0], moments[1], False, 1)
    first, second = Side(COPY, "write", "compute"), Side("nccl::all_gather", "read", "nccl hpz")
    return Race("write-read", first, second, 1, 0, 1, (0,), (), (one,))


@pytest.mark.parametrize(
    ("before", "harmful"),
    [
        ((), True),  # memory that is new: what is read too early is whatever was there
        ((write(1),), False),  # the same value was copied there before
        ((write(1), Phase(1, 1, "step"), Phase(2, 1, "forward")), True),  # a value of before the optimizer's step
        ((write(1), write(2, "aten::zero_")), True),
        ((write(1, hi=32),), True),  # a part of it
        ((Phase(0, 0, "init"), write(1), Phase(1, 1, "forward")), False),  # the first step has the model's own values
    ],
)
def test_a_pair_is_harmful_unless_its_bytes_held_the_value_before(
    before: tuple[TraceRecord, ...], harmful: bool
) -> None:
    records = [*before, write(10), Label(7, 0, 64, "secondary", "layers.0.weight"), write(20)]
    (pair,) = pairs_of([race(10, 1)], records)
    assert pair.harmful == harmful
    assert pair.name == "layers.0.weight" and pair.within_forward


def timed(tmp_path: Path, **options: Any) -> Retimed:
    """A small model, so tight that what is released is soon fetched again, on a slow network."""
    zero = {"stage3_prefetch_bucket_size": 500_000}
    job = small(tmp_path, zero=zero, fix="none", checkpointing=True, micro_batch=8, **options)
    found = rehearse(job, tmp_path / "run", answers=False, examples=None)
    return Retimer(tmp_path / "run" / "trace", found.races).at(network=1.0)


def test_where_parameters_are_counted_from_decides_on_a_slow_network(tmp_path: Path) -> None:
    """DeepSpeed 0.13.4 forgets the embedding at the end of backward, and prefetches so much more in the next step."""
    pinned, older = timed(tmp_path), timed(tmp_path, graft="count-at-backward")
    assert not any(one.harms for one in pinned.harmful)
    bad = [one for one in older.harmful if one.harms]
    assert bad and all(one.pair.within_forward for one in bad)
    assert study.parameter_names(bad).startswith("layers.")


def test_a_copy_at_each_release_races_in_the_first_step_too(tmp_path: Path) -> None:
    """As up to 0.13.5. The secondaries are there from the model's making, and the pinned release leaves them alone."""
    each = timed(tmp_path, graft="copy-each", steps=1)
    assert each.pairs and {one.pair.occurrence.first.step for one in each.pairs} == {1}
    assert not timed(tmp_path, steps=1).pairs


def test_every_change_differs_from_the_setting_in_one_assumption(tmp_path: Path) -> None:
    for release in study.RELEASES:
        found = study.flips(release, tmp_path)
        assert len({(flip.assumption, flip.value) for flip in found}) == len(found)
        assert all("," not in flip.assumption for flip in found), "--only divides them by commas"
        if release in (study.AFFECTED, PINNED):
            first, *others = found
            assert first.assumption == study.BASE
            base = first.job.model_dump()
            for flip in others:
                changed = {name for name, value in flip.job.model_dump().items() if value != base[name]}
                timing = [
                    one for one in (flip.network, flip.machine, flip.slow, flip.direct or None) if one is not None
                ]
                assert bool(changed) != bool(timing), flip


def test_a_release_that_has_none_of_the_chosen_assumptions_has_no_row(tmp_path: Path) -> None:
    """`why --only host` ended with a traceback at 0.13.2, which runs in the setting alone."""
    frame = study.why(["0.13.2"], tmp_path, only=["host"])
    assert frame.empty and list(frame) == [*study.COLUMNS]


def test_a_verdict_is_compared_with_that_of_its_own_release() -> None:
    rows = [
        {"release": release, "assumption": assumption, "reversed": bad}
        for release, assumption, bad in (
            (study.AFFECTED, study.BASE, 4), (study.AFFECTED, "loop", 4), (study.AFFECTED, "overlap_comm", 0),
            (PINNED, study.BASE, 0), (PINNED, "network", 60), ("0.13.5", "release", 0),
        )
    ]  # fmt: skip
    frame = study.judged(pd.DataFrame(rows).reindex(columns=[*study.COLUMNS]))
    assert list(frame.flips) == [False, False, True, False, True, True]


def test_the_bandwidth_is_found_from_which_on_the_synchronisation_matters() -> None:
    def showing_from(gbits: float) -> Any:
        return lambda network: Shown(network >= gbits)

    assert study.matters_from(showing_from(0)) == 0
    assert study.matters_from(showing_from(1000)) is None
    assert study.matters_from(showing_from(30)) == pytest.approx(30, rel=0.02)


class Shown:
    """A timing with one pair, reversed or not."""

    def __init__(self, harms: bool) -> None:
        self.harmful = [self]
        self.harms = harms


def test_a_sweep_tells_the_same_bandwidth_from_its_table() -> None:
    rows = [
        {"configuration": "hpZ none", "micro_batch": batch, "network": network, "harmful_manifested": slack < 0,
         "harmful_slack_us": slack}
        for batch, slacks in {1: (3.0, 2.0, 1.0), 16: (3.0, 1.0, -1.0), 32: (-1.0, -1.0, -2.0)}.items()
        for network, slack in zip((1.0, 10.0, 100.0), slacks, strict=True)
    ]  # fmt: skip
    starts = sweep_study.matters_from(pd.DataFrame(rows), "hpZ none")
    assert pd.isna(starts[1]) and starts[16] == pytest.approx(10 * 10**0.5) and starts[32] == 0


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"deepspeed": "0.13.4", "fix": Fix.NONE}, "leave it out, as 0.13.4 runs as it was released"),
        ({"deepspeed": "0.13.5", "fix": Fix.EVENT}, "or say --fix none"),
        ({"deepspeed": "newest"}, "--deepspeed takes a release"),
        ({"graft": Graft.COPY_ONCE}, "is for DeepSpeed 0.13.2, 0.13.4, 0.13.5"),
        ({"deepspeed": "0.13.4", "qwz": True}, "qwZ and qgZ are run with"),
        ({"reentrant": True}, "add --checkpointing"),
    ],
)
def test_what_no_release_can_do_is_refused_in_a_sentence(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ScenarioError, match=said):
        study.job(**options)


def test_a_release_that_this_process_does_not_import_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match=f"this is DeepSpeed {PINNED}, and the job is for 0.13.4"):
        rehearse(study.reported("0.13.4"), tmp_path)
