"""Published step times of A100 and H100 runs: the choice of rows, what is run for them, and the errors."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
from click.testing import CliRunner

from benchmarks import published
from docs import tables
from papers.commands.throughput import throughput as command
from papers.studies import throughput, throughput_jobs
from papers.studies.throughput_errors import OFF, calibrated, errors, explained
from papers.studies.throughput_rows import LARGEST, choice, read
from streamrace.device.hardware.kernels.gpu import Gpu

RESULTS = tables.DATA / "published-steps.csv"


def smallest() -> pd.DataFrame:
    """Return the chosen row of the smallest model, on the fewest GPUs."""
    return throughput.chosen().sort_values(["layers", "hidden", "gpus", "seq"], kind="stable").iloc[:1]


@pytest.fixture(scope="module")
def results() -> pd.DataFrame:
    return pd.read_csv(RESULTS)


def test_the_choice_follows_from_its_rule_and_sees_no_step_time() -> None:
    rows = read()
    assert list(choice(rows)) == list(rows.choice)
    assert list(choice(rows.drop(columns=["step_time_s", "mem_gib"]))) == list(rows.choice)
    chosen = throughput.chosen()
    assert len(rows) == 346 and len(chosen) == 123
    assert chosen.source.str.startswith("https://").all() and chosen.commit.notna().all()
    assert chosen.source_id.nunique() == 9 and chosen.gpus.between(4, 512).all()
    of_largest = chosen[chosen.source_id == LARGEST]
    assert of_largest.groupby(["gpu", "model"]).size().max() == 3
    assert len(of_largest.groupby(["gpu", "model"])) == 25


def test_each_chosen_row_has_a_machine_and_a_program() -> None:
    for row in throughput.chosen().itertuples():
        profile = throughput_jobs.profile_of(row)
        assert profile.gpu == ("a100" if row.gpu.startswith("A100") else "h100")
        assert row.gpus % profile.gpus_per_node == 0
        batch = row.micro_batch * row.gpus * throughput_jobs.accumulation_of(row)
        assert batch == row.global_batch
        if throughput_jobs.program_of(row) == "FSDP2":
            made = throughput_jobs.training_of(row, row.layers, 1)
            assert made.sizes.gpt == row.model.startswith("MPT") and made.reshard == (
                "FULL" in row.sharding or "GRAD" not in row.sharding
            )


def test_a_release_with_the_first_flash_attention_has_its_rates() -> None:
    """FlashAttention-2 is twice as fast (arXiv 2307.08691), and the benchmarks of llm-foundry's v0.0.4 are older."""
    for row in throughput.chosen().itertuples():
        profile = throughput_jobs.profile_of(row)
        reached = Gpu.of(profile)
        second = Gpu.of(replace(profile, attention_fraction=None, attention_backward_fraction=None))
        if row.source_id == LARGEST:
            assert 0.5 < reached.attention / second.attention < 0.6
            assert 0.5 < reached.attention_backward / second.attention_backward < 0.6
        else:
            assert reached == second


def test_a_job_of_deepspeed_has_the_rows_settings(tmp_path: Path) -> None:
    rows = throughput.chosen(["phantora-gap (tohtana)", "internevo"])
    for row in rows.drop_duplicates("sharding").itertuples():
        folder = tmp_path / str(row.Index)
        folder.mkdir()
        made = throughput_jobs.job_of(row, 3, 2, folder)
        assert (made.ranks, made.micro_batch, made.sequence, made.accumulation) == (
            row.gpus, row.micro_batch, row.seq, 2,
        )  # fmt: skip
        assert made.checkpointing == (row.recompute == "full")
        assert made.profile().inter_node_gbits_per_s == throughput_jobs.profile_of(row).inter_node_gbits_per_s
        if row.sharding.startswith("DeepSpeed"):
            zero = made.deepspeed_config(4096)["zero_optimization"]
            assert (zero["stage"], zero["overlap_comm"], zero["contiguous_gradients"]) == (3, False, False)
        else:
            assert made.sharding == ("NNI" if row.sharding == "ZeRO-1 over 8 ranks" else "")


def frame(*rows: tuple[str, float, float]) -> pd.DataFrame:
    """Return rows of source, measured and predicted seconds, of which all but a tenth is computation."""
    made = pd.DataFrame(rows, columns=["source_id", "theirs_s", "ours_s"]).assign(gpu="A100", gpus=8)
    made = made.assign(compute_s=0.9 * made.ours_s, exposed_s=0.1 * made.ours_s, idle_s=0.0)
    ends = dict.fromkeys(throughput.CHANGES, made.ours_s)
    return made.assign(error=made.ours_s / made.theirs_s - 1, **ends)


def test_the_one_figure_is_that_of_the_other_sources() -> None:
    rows = [("a", 10.0, 8.0), ("a", 20.0, 16.0), ("b", 5.0, 5.0)]
    found = calibrated(frame(*rows))
    assert list(found.factor) == [1.0, 1.0, 1.25]
    assert found.calibrated_error.iloc[2] == pytest.approx(0.25)
    changed = calibrated(frame(*rows[:2], ("b", 50.0, 5.0)))
    assert changed.factor.iloc[2] == 1.25, "a row's own source does not decide its figure"
    assert calibrated(frame(("a", 1.0, 1.0))).factor.isna().all()


def test_an_error_is_explained_by_kernels_only_if_the_other_rows_agree() -> None:
    agree = explained(frame(("a", 14.0, 10.0), ("a", 13.5, 10.0)))
    assert agree.explained_by.str.startswith("kernels: 1.4").iloc[0]
    assert agree.explained_by.iloc[0].endswith("other rows: 1.39)")
    differ = explained(frame(("a", 19.0, 10.0), ("a", 10.0, 10.0), ("a", 10.1, 10.0)))
    assert list(differ.explained_by) == ["", "", ""]
    alone = explained(frame(("a", 14.0, 10.0), ("a", 10.0, 10.0)))
    assert not alone.explained_by.any(), "no other row needs that"
    host = explained(frame(("a", 30.0, 10.0)).assign(twice_host_s=29.0))
    assert host.explained_by.iloc[0].startswith("host: ")


def test_the_tables_figures_are_those_of_the_file(results: pd.DataFrame) -> None:
    found = errors(results)
    whole = found[found.group == "all"].iloc[0]
    size = (results.ours_s / results.theirs_s - 1).abs()
    assert (whole["mean"], whole["median"], whole.worst) == pytest.approx((size.mean(), size.median(), size.max()))
    assert whole.off == (size > OFF).sum()
    told = tables.render("published-errors")
    assert f"{size.mean():.1%}" in told and f"{size.median():.1%}" in told
    assert told.count("not explained") == 1  # a head
    rows_off = tables.render("published-rows").count("not explained")
    assert rows_off == whole.unexplained
    for _, rows in found.groupby("by"):
        assert rows.rows.sum() == len(results)


def test_the_file_has_each_chosen_row_with_its_own_time(results: pd.DataFrame) -> None:
    chosen = throughput.chosen().reset_index(drop=True)
    assert list(results.table) == list(chosen.table)
    assert list(results.theirs_s) == list(chosen.step_time_s)
    assert results.ours_s.to_numpy() == pytest.approx(
        (results.compute_s + results.exposed_s + results.idle_s).to_numpy()
    )


def test_the_files_figures_follow_from_its_times(results: pd.DataFrame) -> None:
    again = calibrated(explained(results))
    for column in ("needs_kernels", "factor", "calibrated_error"):
        assert again[column].to_numpy() == pytest.approx(results[column].to_numpy())
    assert list(again.explained_by) == ["" if pd.isna(text) else text for text in results.explained_by]


def test_the_bench_holds_the_table_to_the_goals(results: pd.DataFrame) -> None:
    """A table with half of each error meets all of them but that of memory; the rivals have no limit."""
    half = results.assign(error=results.error / 2, ours_s=(results.ours_s + results.theirs_s) / 2)
    found = {name: published.figures(frame) for name, frame in {"ours": results, "half": half}.items()}
    mean, median, *others = found["ours"]
    size = 100 * results.error.abs()
    assert (mean.value, median.value) == pytest.approx((size.mean(), size.median()))
    assert [figure.limit for figure in (mean, median)] == [12, 8]
    assert [figure.limit for figure in others if figure.limit] == [15, 15, 15, 15, 5]
    assert [figure.met for figure in found["half"] if figure.limit] == [True] * 6 + [False]
    assert [figure.value for figure in others if "Phantora" in figure.what] == pytest.approx([47, 28, 10, 36], abs=0.5)
    memory = found["ours"][-5]
    known = results[results.mem_gib.notna()]
    assert memory.value == pytest.approx(100 * (known.reserved_gib / known.mem_gib - 1).abs().max())


def test_few_layers_predict_all_of_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    row = next(smallest().itertuples())
    whole = throughput_jobs.predicted(row, tmp_path / "whole")
    monkeypatch.setattr(throughput_jobs, "WHOLE", 4)
    monkeypatch.setattr(throughput_jobs, "FEW", (3, 6))
    few = throughput_jobs.predicted(row, tmp_path / "few")
    assert (few["ours_s"], few["peak_gib"]) == pytest.approx((whole["ours_s"], whole["peak_gib"]), rel=1e-3)


def test_a_source_is_predicted_again_as_in_the_file(results: pd.DataFrame, tmp_path: Path) -> None:
    """One row of DeepSpeed's ZeRO-2 by the command, and one of FSDP2 by its function."""
    told = CliRunner().invoke(command, ["--sources", "ml-engineering", "--workers", "1", "--runs", str(tmp_path)])
    assert told.exit_code == 0, told.output
    assert "Absolute errors of step times" in told.output
    found = pd.read_csv(tmp_path / "throughput" / "throughput.csv").iloc[0]
    assert (tmp_path / "throughput" / "throughput.png").stat().st_size > 10_000
    kept = results[results.source_id == "ml-engineering"].iloc[0]
    assert (found.ours_s, found.peak_gib) == pytest.approx((kept.ours_s, kept.peak_gib), rel=1e-9)

    row = smallest()
    again = throughput_jobs.predicted(next(row.itertuples()), tmp_path / "fsdp")
    place = list(throughput.chosen().index).index(row.index[0])
    assert again["ours_s"] == pytest.approx(results.ours_s.iloc[place], rel=1e-9)
