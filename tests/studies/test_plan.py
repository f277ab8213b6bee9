"""``streamrace plan``: ways to shard one job, each by a dry run, with an answer that says how sure it is."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from streamrace.reports.data.dry import load
from streamrace.repro.__main__ import main
from streamrace.studies.declared.plan import STUDY
from streamrace.studies.predicted_steps import ERRORS, PARTS, WAITING
from tests.studies.small import configuration, model

DATA = Path(__file__).parents[2] / "docs" / "results" / "data"
JOB = ("--nodes", "2", "--gpus", "4", "--network", "25", "--sequence", "128")
Plan = Callable[..., dict[str, Any]]


@pytest.fixture
def plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Plan:
    """``plan("--compare", "zero3,IIG")`` for a small Llama: what a script reads."""
    monkeypatch.chdir(tmp_path)

    def call(*arguments: str) -> dict[str, Any]:
        capfd.readouterr()
        main(["plan", *JOB, "--model", model(tmp_path), "--overwrite", "--format", "json", *arguments])
        found: dict[str, Any] = json.loads(capfd.readouterr().out)
        return found

    return call


def by_name(found: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {row["strategy"]: row for row in found["rows"]}


def test_the_fastest_that_fits_is_named_and_its_figures_are_those_of_a_dry_run(plan: Plan, tmp_path: Path) -> None:
    found = plan("--compare", "zero1,zero2,ZeRO-3,hpz,IIG,III")
    rows = found["rows"]
    assert {row["strategy"] for row in rows} == {"ZeRO-1", "ZeRO-2", "ZeRO-3", "hpZ 4", "IIG", "III (MiCS)"}
    assert [row["step_s"] for row in rows] == sorted(row["step_s"] for row in rows)
    for row in rows:
        assert sum(row[part] for part in PARTS) == pytest.approx(row["step_s"])
        assert row["tokens_per_second"] == pytest.approx(8 * 128 / row["step_s"])
        assert row["fits"] and not row["races"] and not row["reason"]
        assert 0 < row["states_gib"] < row["peak_gib"] < row["gpu_gib"] == 80
    best = rows[0]
    assert found["sentence"].startswith(f"Take {best['strategy']}: {best['step_s']:.3g} s a step (")
    gain = by_name(found)["ZeRO-3"]["step_s"] / best["step_s"]
    least, most = (gain * factor for factor in ERRORS.gain)
    assert f"It is {gain:.2f} times as fast as ZeRO-3 ({least:.2f} to {most:.2f})" in found["sentence"]
    for name, options in {"ZeRO-2": ("--stage", "2"), "hpZ 4": ("--hpz", "4"), "IIG": ("--sharding", "IIG")}.items():
        main(["dry", *JOB, "--model", model(tmp_path), "--one-rank", "--overwrite", "--name", "it", *options])
        alone = load(tmp_path / "runs" / "it").file
        row = by_name(found)[name]
        assert (row["step_s"], row["peak_gib"]) == (alone.step_s, alone.memory.peak / 2**30)


def test_communication_is_told_by_where_it_goes(plan: Plan) -> None:
    rows = by_name(plan("--compare", "GGG,III"))
    assert rows["GGG (ZeRO-3)"]["within_s"] == 0 < rows["GGG (ZeRO-3)"]["between_s"]
    assert 0 < rows["III (MiCS)"]["within_s"] < rows["III (MiCS)"]["between_s"]
    assert "nccl 0,1,2,3: " in rows["III (MiCS)"]["groups"]
    assert by_name(plan("--compare", "zero3", "--nodes", "1"))["ZeRO-3"]["between_s"] == 0


def test_ones_own_configuration_is_run_as_it_is_and_with_each_stage(plan: Plan, tmp_path: Path) -> None:
    file = configuration(tmp_path, {"stage": 2, "zero_hpz_partition_size": 1}, gradient_accumulation_steps=3)
    found = plan(file, "--compare", "zero2,zero3,IIG")
    rows = by_name(found)
    assert set(rows) == {"as ds.json says", "ZeRO-2", "ZeRO-3", "IIG"}
    assert rows["as ds.json says"]["step_s"] == rows["ZeRO-2"]["step_s"] != rows["ZeRO-3"]["step_s"]
    for row in found["rows"]:
        assert row["tokens_per_second"] == pytest.approx(8 * 3 * 128 / row["step_s"]), "the file's accumulation"
    assert file in found["command"].split()


def test_a_way_that_cannot_run_is_a_row_with_the_reason(plan: Plan) -> None:
    found = plan("--compare", "zero3,IIG", "--qwz", "--qgz", "--nodes", "1", "--gpus", "3")
    *ran, refused = found["rows"]
    assert [row["strategy"] for row in ran] == ["IIG"]
    assert refused["strategy"] == "ZeRO-3" and not refused["fits"] and refused["step_s"] is None
    assert "choose other sizes, or leave it out" in refused["reason"]
    assert found["sentence"].endswith("No other way fits.")


def test_a_family_that_our_engine_cannot_train_is_one(plan: Plan) -> None:
    found = plan("--model", "gpt-1.2b", "--compare", "IIG")
    assert "gpt-1.2b multiplies by its embedding's weight outside of the embedding" in found["rows"][0]["reason"]
    assert found["sentence"] == "None of these ways to shard can run."


def test_what_fits_nowhere_is_told_what_would_help(plan: Plan) -> None:
    found = plan("--compare", "zero1,zero3", "--gpu-memory", "0.05", "--micro-batch", "2")
    assert found["verdict"] == "nothing fits" and not any(row["fits"] for row in found["rows"])
    least = min(found["rows"], key=lambda row: row["peak_gib"])
    need = f"{least['strategy']} needs least, {least['peak_gib']:.3g} GiB, of which model states are "
    assert found["sentence"].startswith(f"Nothing fits 0.05 GiB: {need}")
    assert "--checkpointing or a smaller --micro-batch" in found["sentence"]


def test_less_memory_by_checkpointing_whoever_trains(plan: Plan) -> None:
    size = ("--compare", "zero3,IIG", "--micro-batch", "8", "--sequence", "512")
    plain, again = by_name(plan(*size)), by_name(plan(*size, "--checkpointing"))
    for name, row in again.items():
        assert row["peak_gib"] < plain[name]["peak_gib"] and row["compute_s"] > plain[name]["compute_s"]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--compare", "zero4"), "there is no strategy 'zero4'"),
        (("--compare", "NGI"), "the strategy NGI is not legal"),
        (("--model", "llama-9"), "there is no model 'llama-9': choose one of llama-2-7b"),
        (("--gpu-memory", "nan"), "--gpu-memory takes a number above 0, not nan"),
        (("--nodes", "0"), "nodes: Input should be greater than or equal to 1"),
        (("nothing.json",), "cannot read the DeepSpeed configuration nothing.json"),
    ],
)
def test_a_mistake_is_one_sentence_before_anything_runs(
    arguments: tuple[str, ...],
    sentence: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        main(["plan", *arguments])
    assert ended.value.code == 2
    out, err = capfd.readouterr()
    assert sentence in err and len(err.splitlines()) == 1 and not out
    assert not list(tmp_path.iterdir())


def frame(**rows: dict[str, Any]) -> dict[str, pd.DataFrame]:
    usual = {"reason": "", "races": 0, "manifested": 0, "gpu_gib": 80.0, "peak_gib": 40.0, "fits": True,
             "states_gib": 20.0, "within_s": 0.0, "between_s": 0.0, "tokens_per_second": 1e4}  # fmt: skip
    return {"plan": pd.DataFrame([{"strategy": name, **usual, **row} for name, row in rows.items()])}


def said(**rows: dict[str, Any]) -> str:
    job = {"model": "m", "nodes": "4", "gpus": "8", "hardware": "h", "network": "null", "micro_batch": "1"}
    return STUDY.conclude(frame(**rows), job).sentence


def test_ways_that_the_errors_do_not_tell_apart_are_all_to_be_measured() -> None:
    near = said(IIG={"step_s": 5.0}, III={"step_s": 5.1}, GGG={"step_s": 20.0})
    assert near.endswith("by these errors III may be as fast: measure it, too.")
    assert "measure" not in said(IIG={"step_s": 5.0}, III={"step_s": 20.0})


def test_a_race_is_said_beside_the_speed() -> None:
    assert said(IIG={"step_s": 5.0, "races": 2}).endswith("It has 2 races, which 'streamrace dry' shows.")


def test_more_nodes_help_as_far_as_model_states_shrink() -> None:
    large = {"fits": False, "step_s": 5.0, "peak_gib": 100.0}
    assert "--checkpointing or 6 nodes or more would help." in said(GGG={**large, "states_gib": 60.0})
    assert "nodes or more" not in said(GGG={**large, "states_gib": 10.0})


def test_nothing_runs() -> None:
    assert said(GGG={"fits": False, "reason": "no"}) == "None of these ways to shard can run."


def test_the_stated_errors_are_those_of_the_published_comparison() -> None:
    """Eight in ten: without the tenth at either end."""
    steps = pd.read_csv(DATA / "published-steps.csv")
    steps = steps[steps.exposed_s <= WAITING * steps.ours_s]
    rows = pd.read_csv(DATA / "paper-rows.csv")
    rows["late"] = rows.theirs_s / rows.ours_s
    rows["usual"] = rows.setting.str.replace(r"ZeRO\+\+|hpZ", "ZeRO-3", regex=True)
    usual = rows.setting == rows.usual
    pairs = rows[usual].merge(rows[~usual], on=["cluster", "model", "network", "usual"])
    gains = pairs.late_x / pairs.late_y
    for number, values in enumerate((steps.theirs_s / steps.ours_s, rows.late, gains)):
        assert tuple(values.quantile([0.1, 0.9]).round(2)) == ERRORS[number]
        assert len(values) == ERRORS.counts[number]


def test_a_step_that_waits_for_a_network_has_the_wider_range() -> None:
    assert "5 s a step (5.1 to 6.35 s, as" in said(IIG={"step_s": 5.0, "within_s": 0.4})
    assert "5 s a step (6.2 to 10.8 s, as" in said(IIG={"step_s": 5.0, "within_s": 0.4, "between_s": 0.2})
