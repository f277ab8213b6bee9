"""Published step times with tensor and pipeline parallelism: the choice of rows, and Megatron-core's trainings."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
from click.testing import CliRunner

from benchmarks import published
from docs import tables
from papers.commands.throughput import throughput as command
from papers.programs.decoder import DecoderSizes
from papers.programs.megatron import MegatronTraining, make_importable, stages, stages_by_cost
from papers.programs.ring_run import rehearsed
from papers.studies import throughput, throughput_megatron
from papers.studies.throughput_errors import calibrated, errors, explained
from papers.studies.throughput_machines import AS_STATED, profile_of
from papers.studies.throughput_rows import (
    LARGEST_MODEL_PARALLEL,
    MODEL_PARALLEL,
    model_parallel_choice,
    read,
)
from streamrace.device.hardware import HardwareTiming, load_profile
from streamrace.metrics import BusyMetrics
from streamrace.trace.files import TraceReader, file_of
from streamrace.trace.records import Collective, Group

RESULTS = tables.DATA / "published-model-parallel.csv"
SIZES = DecoderSizes(8, 4096, 32, 32, 16384, 32768, 4096, gpt=False)


@pytest.fixture(scope="module")
def results() -> pd.DataFrame:
    return pd.read_csv(RESULTS)


def run(training: MegatronTraining, replicas: int, folder: Path) -> dict[int, dict[str, int]]:
    """Run it dry on H100 in nodes of eight, as one rank of each stage; return what each tells."""
    make_importable()
    ranks = training.tensor * training.pipeline * replicas
    timing = HardwareTiming(load_profile("h100"), tuple(rank // 8 for rank in range(ranks)))
    each = range(0, ranks, ranks // training.pipeline)
    return rehearsed(timing, folder, training.run, info={}, ranks=each)


def seconds(folder: Path) -> float:
    """Return the time of rank 0's last step."""
    busy = BusyMetrics()
    busy.feed(list(TraceReader(file_of(folder / "trace", 0)).read()))
    return busy.result().steps[-1].time / 1e9


def collectives(folder: Path, rank: int) -> dict[tuple[str, int], int]:
    """Count a rank's collectives by kind and size of group."""
    sizes: dict[int, int] = {}
    found: dict[tuple[str, int], int] = {}
    for record in TraceReader(file_of(folder / "trace", rank)).read():
        if isinstance(record, Group):
            sizes[record.group] = len(record.ranks)
        elif isinstance(record, Collective):
            kind = record.kernel.removeprefix("nccl::"), sizes[record.group]
            found[kind] = found.get(kind, 0) + 1
    return found


def test_the_choice_follows_from_its_rule_and_sees_no_step_time_but_to_find_repetitions() -> None:
    rows = read(MODEL_PARALLEL)
    assert list(model_parallel_choice(rows)) == list(rows.choice)
    other = rows.assign(step_time_s=rows.step_time_s * 2, mem_gib=0.0)
    assert list(model_parallel_choice(other)) == list(rows.choice)
    chosen = throughput.chosen(file=MODEL_PARALLEL)
    assert (len(rows), len(chosen), chosen.source_id.nunique()) == (454, 87, 5)
    assert chosen.source.str.startswith("https://").all() and chosen.commit.notna().all()
    assert (chosen.tp.fillna(1) * chosen.pp.fillna(1) > 1).all() and chosen.gpus.between(4, 512).all()
    largest = chosen[chosen.source_id == LARGEST_MODEL_PARALLEL]
    assert not largest.duplicated(["hidden", "tp", "pp"]).any()


def test_each_chosen_row_has_a_machine_and_a_training() -> None:
    for row in throughput.chosen(file=MODEL_PARALLEL).itertuples():
        profile = profile_of(row)
        assert profile.gpu == ("a100" if row.gpu.startswith("A100") else "h100")
        made = throughput_megatron.training_of(row, 1)
        replicas = throughput_megatron.replicas_of(row)
        assert made.tensor * made.pipeline * replicas == row.gpus
        assert row.micro_batch * replicas * throughput_megatron.accumulation_of(row) == row.global_batch
        assert replicas % made.sharded == 0 and made.sizes.heads % made.tensor == made.sizes.vocab % made.tensor == 0
        assert (made.sharded > 1) == ("ZeRO-1" in row.sharding and replicas > 1)


def test_layers_that_do_not_fill_the_stages_evenly() -> None:
    assert stages(8, 4, 1) is None and stages(96, 8, 12) is None
    found = stages(78, 12, 1)
    assert found is not None
    assert [len(stage) for stage in found] == [7] * 8 + [6] * 4
    assert (found[0][0], found[-1][-1], sum(stage.count("decoder") for stage in found)) == ("embedding", "loss", 78)


def test_stages_of_as_much_cost() -> None:
    """The loss of nanotron's smallest model costs as much as four of its layers."""
    small = DecoderSizes(16, 2048, 32, 32, 8192, 131072, 4096, gpt=False)
    first, last = stages_by_cost(small, 2)
    assert first == ["embedding", *["decoder"] * 11]  # ten are a half, and not more than that
    assert last == [*["decoder"] * 5, "loss"]
    large = DecoderSizes(80, 8192, 64, 64, 28672, 131072, 4096, gpt=False)
    found = stages_by_cost(large, 32)
    assert [len(stage) for stage in found[:5]] == [4, 3, 2, 3, 2]
    assert (len(found), sum(stage.count("decoder") for stage in found), found[-1][-1]) == (32, 80, "loss")


@pytest.mark.release
def test_a_pipeline_takes_as_many_passes_as_there_are_micro_batches_and_other_stages(tmp_path: Path) -> None:
    """1F1B (arXiv 2104.04473, section 2.2): the bubble is p - 1 of m + p - 1 passes; interleaved, a part of that."""
    took = {}
    for chunks, micro_batches in ((1, 4), (1, 8), (2, 4), (2, 8)):
        training = MegatronTraining(SIZES, 1, micro_batches, 2, 1, 4, chunks)
        run(training, 1, tmp_path / f"{chunks}-{micro_batches}")
        took[chunks, micro_batches] = seconds(tmp_path / f"{chunks}-{micro_batches}")
    each = (took[1, 8] - took[1, 4]) / 4  # of the last stage, which has the loss, too
    others = took[1, 4] - 4 * each
    assert 0.35 * each < others / 3 < each
    interleaved = (took[2, 8] - took[2, 4]) / 4
    assert interleaved == pytest.approx(each, rel=0.25)
    assert took[2, 4] < took[1, 4]


@pytest.mark.release
def test_each_kind_of_parallelism_makes_its_collectives(tmp_path: Path) -> None:
    """Tensor parallelism of 2, pipelines of 2 and 4 replicas that share the optimizer's state, on 16 ranks."""
    training = MegatronTraining(SIZES._replace(layers=4), 1, 4, 2, 2, 2, sharded=4, overlap="all")
    told = run(training, 4, tmp_path / "all")
    assert sorted(told) == [0, 8] and told[0]["reserved"] >= told[0]["allocated"] > 0
    found = collectives(tmp_path / "all", 0)
    assert found["all_gather", 2] > 0 and found["reduce_scatter", 2] > 0  # sequence parallelism
    assert found["all_gather", 4] > 0 and found["reduce_scatter", 4] > 0  # the optimizer's shards
    assert found["send", 2] == found["recv", 2] == 2 * 4  # activations and their gradients, of both steps
    plain = MegatronTraining(SIZES._replace(layers=4), 1, 4, 2, 2, 2, sequence_parallel=False)
    run(plain, 4, tmp_path / "plain")
    assert ("all_gather", 4) not in collectives(tmp_path / "plain", 0)


@pytest.mark.release
def test_memory_of_recomputation_and_of_a_shared_state(tmp_path: Path) -> None:
    sizes = SIZES._replace(layers=4)
    many, one = (MegatronTraining(sizes, batch, 2, 2, 2, 1) for batch in (8, 1))  # with 8 activations decide
    most = {
        name: run(training, 4, tmp_path / name)[0]["allocated"]
        for name, training in {
            "many": many,
            "recomputed": many._replace(recomputed="full"),
            "scores": many._replace(flash=False, dropout=0.1),
            "one": one,
            "shared": one._replace(sharded=4),
        }.items()
    }
    assert most["recomputed"] < most["many"] < most["scores"]
    # Adam's two moments and the weights in fp32, of which three quarters are other ranks', and its temporary tensors.
    parameters = 4 * 4096 * (4 * 4096 + 2 * 16384) + 32768 * 4096
    states = 0.75 * 12 * parameters / 2
    assert states < most["one"] - most["shared"] < 1.1 * states


@pytest.mark.release
def test_rows_are_predicted_again_as_in_the_file(results: pd.DataFrame, tmp_path: Path) -> None:
    options = ["--model-parallel", "--sources", "megatron-ci", "--workers", "1", "--runs", str(tmp_path)]
    told = CliRunner().invoke(command, options)
    assert told.exit_code == 0, told.output
    found = pd.read_csv(tmp_path / "throughput" / "throughput.csv")
    kept = results[results.source_id == "megatron-ci"]
    for column in ("ours_s", "peak_gib", "reserved_gib"):
        assert list(found[column]) == pytest.approx(list(kept[column]), rel=1e-9)


@pytest.mark.release
@pytest.mark.parametrize("stages", [2, 4], ids=["two stages", "four unequal stages"])
def test_few_micro_batches_extend_a_step(stages: int, tmp_path: Path) -> None:
    make_importable()
    rows = throughput.chosen(["nanotron"], MODEL_PARALLEL)
    row = next(rows[(rows.pp == stages) & (rows.tp == 1)].itertuples())
    count = 4 * stages
    row = row._replace(global_batch=count * row.micro_batch * throughput_megatron.replicas_of(row))
    whole = throughput_megatron._run(row, count, tmp_path / "whole", AS_STATED)
    busiest = max(whole, key=lambda stage: stage["compute_s"])
    extended = throughput_megatron.predicted(row, tmp_path / "extended")
    for figure, value in extended.items():
        most = max(stage[figure] for stage in whole) if figure.endswith("_gib") else busiest[figure]
        assert value == pytest.approx(most, rel=1e-6)


def test_the_file_has_each_chosen_row_with_its_own_time(results: pd.DataFrame) -> None:
    chosen = throughput.chosen(file=MODEL_PARALLEL).reset_index(drop=True)
    assert list(results.table) == list(chosen.table)
    assert list(results.theirs_s) == list(chosen.step_time_s)
    parts = results[["compute_s", "exposed_s", "idle_s"]]
    assert (parts >= 0).all(axis=None)
    assert results.ours_s.to_numpy() == pytest.approx(parts.sum(axis=1).to_numpy())
    again = calibrated(explained(results))
    assert again.calibrated_error.to_numpy() == pytest.approx(results.calibrated_error.to_numpy())


def test_the_page_and_the_bench_have_the_files_errors(results: pd.DataFrame) -> None:
    whole = errors(results).iloc[0]
    told = tables.render("published-model-parallel-errors")
    assert f"{whole['mean']:.1%}" in told and f"{whole['median']:.1%}" in told
    mean, median, memory = published.pipeline_figures(results)
    assert (mean.value, median.value) == pytest.approx((100 * whole["mean"], 100 * whole["median"]))
    assert memory.value < 10
