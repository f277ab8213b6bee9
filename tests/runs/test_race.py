"""The race in DeepSpeed's own code: found, shown, hidden, cured."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from streamrace.detectors import Race
from streamrace.reports.data.findings import Findings, Verdict
from tests.runs.timings import TIMINGS

Run = Callable[..., Findings]
PAIR: dict[str, Any] = {"steps": 2, "accumulation": 1, "ranks": 2, "nodes": 1}  # two ranks are a group of hpZ


def where(race: Race) -> tuple[str, str]:
    """The two lines of a race: function names in DeepSpeed."""
    return tuple(side.stack[0].function.rpartition(".")[2] for side in (race.first, race.second))  # type: ignore[return-value]


@pytest.fixture(scope="module")
def unstable(make_run: Run, tmp_path_factory: pytest.TempPathFactory) -> tuple[Findings, Path]:
    """The main scenario without the synchronisation: what was found, and the run's folder."""
    folder = tmp_path_factory.mktemp("race") / "unstable"
    return make_run(fix="none", size="small", sequence=64, steps=3, folder=folder), folder


def test_without_the_sync_training_goes_wrong_and_the_two_lines_are_named(unstable: tuple[Findings, Path]) -> None:
    found, _ = unstable
    assert found.verdict is Verdict.UNSTABLE
    for race in found.races:
        assert (race.first.kernel, race.first.access, race.first.stream) == ("aten::copy_", "write", "compute")
        assert where(race)[0] == "_partition_param_sec"
        assert race.first.stack[0].file == "deepspeed/runtime/zero/partition_parameters.py"
        assert race.ranks == (0, 1, 2, 3)
        assert {name.kind for name in race.names} == {"secondary"}
        assert race.missing_wait.startswith("stream 'all-gather' never waits for stream 'compute' after copy_")
    readers = {(race.second.kernel, race.second.stream): race for race in found.races}
    assert set(readers) == {("aten::cat", "all-gather"), ("nccl::all_gather", "nccl hpz")}
    witnesses = [race.witness for race in found.races]
    assert all(each and each.token.startswith("t1,") and not each.reason for each in witnesses)
    coalesced, single = readers["aten::cat", "all-gather"], readers["nccl::all_gather", "nccl hpz"]
    assert where(coalesced)[1] == "_all_gather_dtype"
    assert "_all_gather_sequential" in [frame.function.rpartition(".")[2] for frame in single.second.stack]
    assert coalesced.manifested > 0


def test_the_first_wrong_parameter_is_the_right_one(unstable: tuple[Findings, Path]) -> None:
    """Checked against the table of all uses, and against the race itself: its secondary was read too early."""
    found, folder = unstable
    assert found.divergence is not None
    wrong = found.divergence.parameter
    assert wrong is not None
    uses = pd.read_csv(folder / "parameters.csv")
    bad = uses[~uses["equal"]]
    first = bad[(bad["rank"] == wrong.rank)].iloc[0]
    assert (first["step"], first["micro_batch"], first["phase"], first["parameter"]) == (
        wrong.step,
        wrong.micro_batch,
        wrong.phase,
        wrong.name,
    )
    assert bad["step"].min() == wrong.step
    assert wrong.phase == "backward"  # the secondary is read for the backward pass
    assert wrong.name in {name.name for race in found.races for name in race.names}
    moment = next(one for race in found.races for one in race.examples if one.rank == wrong.rank and one.manifested)
    assert (moment.second.step, moment.second.micro_batch) == (wrong.step, wrong.micro_batch)
    loss = found.divergence.loss
    assert loss is not None
    assert loss.step == wrong.step + 1  # the loss of that step was computed before its backward pass


# The run above has both readers.
@pytest.mark.parametrize(
    ("prefetch_bucket", "readers"),
    [
        pytest.param(0, {"nccl::all_gather"}, id="one by one"),
        pytest.param(10_000_000, {"aten::cat", "nccl::all_gather"}, id="coalesced", marks=pytest.mark.wide),
    ],
)
def test_the_bucket_decides_how_the_secondary_is_read(run: Run, prefetch_bucket: int, readers: set[str]) -> None:
    found = run(fix="none", prefetch_bucket=prefetch_bucket, **PAIR)
    assert {where(race)[0] for race in found.races} == {"_partition_param_sec"}
    assert {race.second.kernel for race in found.races} == readers


def test_a_timing_that_does_not_show_the_race_does_not_hide_it(run: Run) -> None:
    found = run(fix="none", stands_for="itself", **PAIR)
    assert found.divergence is not None
    assert not found.divergence.diverged
    assert found.verdict is Verdict.HIDDEN
    assert {where(race)[0] for race in found.races} == {"_partition_param_sec"}
    assert sum(race.manifested for race in found.races) == 0


# One live run for each fix, under timings that move other things. All fixes under all of them are wide tests, and in
# tests/fuzz/recorded/test_ordered.py replays of one recorded run. Those are as good: test_times.py there says why.
LIVE = [("stream-sync", "slow rank"), ("event", "slow compute"), ("device-sync", "jitter")]


@pytest.mark.parametrize(("fix", "timing"), LIVE)
def test_a_fixed_run_is_clean_under_another_timing(run: Run, fix: str, timing: str) -> None:
    found = run(fix=fix, **PAIR, **TIMINGS[timing])
    assert found.verdict is Verdict.CLEAN, [race.missing_wait for race in found.races]


@pytest.mark.wide
@pytest.mark.parametrize("timing", TIMINGS)
@pytest.mark.parametrize("fix", ["stream-sync", "event", "device-sync"])
def test_a_fixed_run_is_clean_under_every_timing(run: Run, fix: str, timing: str) -> None:
    test_a_fixed_run_is_clean_under_another_timing(run, fix, timing)


def test_without_the_sync_the_race_is_found_under_another_timing(run: Run) -> None:
    _the_race_is_found(run(fix="none", **PAIR, **TIMINGS["slow rank"]))


@pytest.mark.wide
@pytest.mark.parametrize("timing", TIMINGS)
def test_without_the_sync_the_race_is_found_under_every_timing(run: Run, timing: str) -> None:
    _the_race_is_found(run(fix="none", steps=2, accumulation=1, **TIMINGS[timing]))


def _the_race_is_found(found: Findings) -> None:
    assert found.verdict in (Verdict.UNSTABLE, Verdict.HIDDEN)
    assert {where(race)[0] for race in found.races} == {"_partition_param_sec"}


@pytest.mark.parametrize(
    "options",
    [
        {"size": "odd", "frozen": ("*layers.0*",), "checkpointing": True},
        {"model": "falcon", "precision": "fp32"},
        {"model": "mixtral"},
        # each setting alone is wide
        *(
            pytest.param(alone, marks=pytest.mark.wide)
            for alone in (
                {"size": "odd"},
                {"frozen": ("*layers.0*",)},
                {"model": "falcon"},
                {"precision": "fp32"},
                {"checkpointing": True},
            )
        ),
        pytest.param({"ranks": 8, "nodes": 2, "hpz": 4}, marks=pytest.mark.wide),
        pytest.param({"ranks": 8, "nodes": 2, "hpz": 2}, marks=pytest.mark.wide),
        pytest.param({"model": "convnext"}, marks=pytest.mark.wide),
    ],
    ids=lambda options: " ".join(f"{key}={value}" for key, value in options.items()),
)
def test_the_race_is_found_whatever_the_shape(run: Run, options: dict[str, object]) -> None:
    _the_race_is_found(run(**{"fix": "none", **PAIR, **options}))


@pytest.mark.parametrize("model", [pytest.param("mixtral", marks=pytest.mark.wide), "convnext"])
def test_experts_and_convolutions_compute_what_gloo_does_with_the_sync(run: Run, model: str) -> None:
    assert run(fix="stream-sync", model=model, **PAIR).verdict is Verdict.CLEAN


def test_without_overlap_one_stream_orders_all(run: Run) -> None:
    """``overlap_comm`` off: the all-gather is issued from the stream of the copy, so no sync is needed."""
    assert run(fix="none", overlap_comm=False, **PAIR).verdict is Verdict.CLEAN


def test_without_hpz_there_is_nothing_to_race(run: Run) -> None:
    assert run(fix="none", hpz=1, **PAIR).verdict is Verdict.CLEAN


def test_the_optimizer_step_is_ordered_only_by_the_persistent_parameters(run: Run) -> None:
    """A second race of stock 0.19.8, found by this harness: the primary partition.

    The optimizer's copy into the primary partitions runs on the compute stream, the next forward's
    all-gather reads them on its own, and no wait stands between. What saves the default configuration is
    the device synchronisation that gathering the persistent parameters happens to need; without any
    (threshold 0), only a program that reads the loss after each step is safe.
    """
    found = run(fix="stream-sync", persistence=0, steps=2, ranks=2, nodes=1)
    assert {where(race)[0] for race in found.races} == {"_reassign_or_swap_out_partitioned_parameters"}
    assert {name.kind for race in found.races for name in race.names} == {"primary"}
