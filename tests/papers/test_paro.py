"""``python -m papers paro``: PaRO's strategies live, beside DDP and the formulas; the paper's figures."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch

from papers.__main__ import main
from papers.programs import ddp
from papers.studies import paro, paro_paper, paro_sweep
from papers.studies.paro_paper import CLAIMS, FACTS, RATES, SHARES, Claim, PaperCase, Scaling
from papers.studies.paro_timed import StepTimes, on_flow, timed
from streamrace.device.hardware import load_profile
from streamrace.device.hardware.facts import fact
from streamrace.scenarios.base import ScenarioError
from streamrace.scenarios.job import Job, job
from streamrace.scenarios.models import FULL_SIZE
from streamrace.scenarios.registry import named
from tests.sharding.training import forked


def command(capsys: pytest.CaptureFixture[str], runs: Path, *arguments: str) -> tuple[str, str, int]:
    """What ``paro`` prints: all of it, and the same without line breaks; and its exit status."""
    status = 0
    try:
        main(["paro", *arguments, "--runs", str(runs)])
    except SystemExit as ended:
        status = int(ended.code or 0)
    shown = capsys.readouterr().out
    return shown, " ".join(shown.split()), status


# -- live ---------------------------------------------------------------------------------------------------------


def test_two_strategies_are_as_ddp_and_the_formulas_have_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shown, words, status = command(capsys, tmp_path, "--compare", "IIG,ZeRO-2", "--steps", "2")
    assert status == 0
    assert "largest difference from torch's DistributedDataParallel on CPU with gloo" in words
    assert "All 2 are as the formulas say, and none has a race." in words
    assert max(map(len, shown.splitlines())) <= 80
    frame = pd.read_csv(tmp_path / "paro" / "live.csv").set_index("strategy")
    assert list(frame.index) == ["IIG", "NGG"]
    for figure in paro.FIGURES:
        assert (frame[figure] == frame[f"{figure}_formula"]).all()
    assert frame.begins_equal.all()
    assert (frame.loss_difference < 1e-5).all()
    assert not frame.races.any()
    # 41,824 numbers on 4 ranks in groups of 2, two micro-batches: PaRO's table by hand
    whole = 4 * 41_824
    assert list(frame.loc["IIG", list(paro.FIGURES)]) == [
        whole / 2,
        whole / 2,
        3 * whole / 4,
        (2 * 2 + 2) * whole / 2,
        2 * (whole / 2) / 2,
    ]
    assert list(frame.loc["NGG", list(paro.FIGURES)]) == [whole, whole / 4, 3 * whole / 4, 0, 3 * (3 * whole / 4)]


def test_a_race_is_told_and_is_an_exit_status(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In bf16 DDP has no fp32 state: our own NNN stands for it."""
    arguments = ("--compare", "IIG", "--steps", "2", "--precision", "bf16", "--without", "gather-before-use")
    shown, words, status = command(capsys, tmp_path, *arguments)
    assert status == 1
    assert "from our engine under NNN on CPU with gloo, as DDP does not train in bf16 with fp32 state" in words
    frame = pd.read_csv(tmp_path / "paro" / "live.csv")
    races = int(frame.races[0])
    assert races > 0
    assert f"1 of 1 are wrong (!). IIG has {races} race" in words or f"and has {races} race" in words
    assert f"{races}!" in shown


def test_a_figure_that_differs_is_marked() -> None:
    figures = {name: 4.0 for figure in paro.FIGURES for name in (figure, f"{figure}_formula")}
    row = {"strategy": "IIG", "title": "IIG", "loss_difference": 0.0, "begins_equal": True, **figures}
    good = {**row, "step_ns": 1, "races": 0, "manifested": 0}
    bad = {**good, "strategy": "GGG", "state": 5.0, "begins_equal": False, "races": 2}
    frame = pd.DataFrame([good, bad])
    assert list(paro.wrong(frame)) == [False, True]
    from papers.screen.paro import sentence

    assert sentence(frame) == "1 of 2 are wrong (!). GGG differs in state, its first losses and has 2 races."


def test_ddp_is_refused_what_it_does_not_do(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match="DDP trains in fp32, and the scenario in bf16: choose fp32"):
        ddp.run(named("paro"), folder=tmp_path)


# -- timing a step of few micro-batches as one of many ------------------------------------------------------------


@pytest.fixture
def narrow(tmp_path: Path) -> str:
    """Layers as wide as Llama 7B's, but two of them."""
    seven = FULL_SIZE["llama-2-7b"]
    config = {
        "model_type": "llama", "architectures": ["LlamaForCausalLM"], "num_hidden_layers": 2,
        "hidden_size": seven.hidden, "intermediate_size": seven.intermediate, "num_attention_heads": seven.heads,
        "num_key_value_heads": seven.heads, "vocab_size": seven.vocab, "tie_word_embeddings": False,
    }  # fmt: skip
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config), encoding="utf-8")
    return str(path)


def narrow_job(model: str, strategy: str, accumulation: int, **more: Any) -> Job:
    options = {"nodes": 4, "gpus": 8, "hardware": "dgx-a100-roce", "micro_batch": 4, "sequence": 512, "steps": 1}
    return job(**{**options, "model": model, "sharding": strategy, "accumulation": accumulation, **more})


@pytest.mark.parametrize("strategy", ["GGG", "NII"])
def test_a_step_of_ten_micro_batches_follows_from_one_of_four(narrow: str, strategy: str, tmp_path: Path) -> None:
    """To the nanosecond, where the network decides and where it does not.

    With 5 Gbit/s what NII reduces between groups in the last micro-batch holds up its backward pass: that one is like
    no other.
    """
    flows = (5.0, 100.0, 448.0)
    machines = {flow: on_flow(load_profile("dgx-a100-roce"), flow) for flow in flows}
    ten = narrow_job(narrow, strategy, 10)

    def both() -> list[list[int]]:
        whole = timed(ten, tmp_path / "whole", machines=machines, whole=True)
        derived = timed(ten, tmp_path / "four", machines=machines)
        return [[one.steps[flow] for flow in flows] for one in (whole, derived)]

    whole, derived = forked(both, tmp_path / "fork")
    assert derived == whole
    assert (whole[1] == whole[2]) == (strategy == "NII"), "computing hides all that NII sends between nodes"


def test_what_a_flow_gets_does_not_change_what_a_node_gets() -> None:
    profile = load_profile("dgx-a100-roce")
    assert on_flow(profile, 100.0) == replace(profile, network=None), (
        "one ring per flow, whatever NCCL would make of it"
    )
    assert [on_flow(profile, rate).flow_gbits_per_s(1) for rate in (25.0, 448.0, 900.0)] == [25.0, 448.0, 448.0]
    assert on_flow(profile, 448.0).flow_gbits_per_s(8) == profile.flow_gbits_per_s(8) == 56.0
    assert on_flow(replace(profile, node_gbits_per_s=None), 50.0).flow_gbits_per_s(2) == 50.0


# -- the paper ----------------------------------------------------------------------------------------------------


def test_the_cheapest_case_of_the_paper(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """7B with a single matrix trained: two dry runs. The paper tells no figure for it."""
    shown, words, status = command(capsys, tmp_path, "--paper", "--models", "llama-2-7b", "--trainable", "PEFT")
    assert status == 0
    assert "2/2 llama-2-7b, PEFT trained, 32 GPUs" in words
    assert max(map(len, shown.splitlines())) <= 80
    frame = pd.read_csv(tmp_path / "paro-paper" / "gains.csv")
    row = frame.iloc[0]
    assert row[["strategy", "against", "trained"]].tolist() == ["IIG", "GGG", "PEFT"]
    assert math.isnan(row.theirs)
    assert math.isnan(row.error)
    assert row.share == 4096**2 / FULL_SIZE["llama-2-7b"].parameters
    ns = {name: round(row[name] * 1e9) for name in ("step_s", "against_s", "together_s", "together_against_s")}
    assert row.ours == ns["against_s"] / ns["step_s"]
    assert row.together == ns["together_against_s"] / ns["together_s"]
    assert row.ours > row.together > 1
    assert row.ours > row.facts > 1, "NCCL's rings have more links than one flow"
    assert row.against_s == pytest.approx(20.9, rel=0.01), "ZeRO-3 waits for the network: what the closed form has"


def test_errors_and_rates_are_of_the_speed_ups() -> None:
    """A step of GGG that waits for the network alone, and one of IIG that does not."""
    claim = CLAIMS[0]
    mine, other = claim.cases
    waits = StepTimes({rate: round(1e11 / rate) for rate in (*RATES, FACTS)}, parameters=4, trained=4, peak=1 << 30)
    computes = StepTimes(dict.fromkeys((*RATES, FACTS), 500_000_000), parameters=4, trained=4, peak=90 << 30)
    frame = paro_paper.gains([claim], {mine: computes, other: waits})
    assert math.isnan(frame.calibrated[0]), "no row is predicted with its own figure"
    twice = paro_paper.gains([claim, claim._replace(theirs=2.0)], {mine: computes, other: waits})
    assert twice.calibrated.tolist() == pytest.approx([2.0, 2.28]), "each with what the other needs"
    row = frame.iloc[0]
    assert (row.ours, row.together) == (2.0, waits.steps[448.0] / 5e8)
    assert row.error == 2.0 / 2.28 - 1
    assert row.together_error == row.together / 2.28 - 1
    assert row.rate == pytest.approx(200 / 2.28, rel=1e-6)
    from papers.screen.paro_paper import sentences

    told = sentences(frame)
    assert told[0] == "Within 25% of theirs: 1 of 1 with one flow, 0 with all links; nearer with all links: 0 of 1."
    assert told[1] == "1 come out at 88 to 88 Gbit/s, the share of 0.9 to 0.9 flows."
    assert told[-1].startswith("More than 80 GiB at the peak, as nothing is computed again here: 7B all IIG 90.")


def test_scaling_is_throughput_per_gpu() -> None:
    claim = Scaling("GGG", 0.63)
    few, many = claim.cases
    found = {
        few: StepTimes(dict.fromkeys((*RATES, *SHARES, FACTS), 9000), 1, 1, 1),
        many: StepTimes(
            dict.fromkeys((*RATES, FACTS), 10000) | {share: round(10000 / share) for share in SHARES}, 1, 1, 1
        ),
    }
    frame = paro_paper.scaling([claim], found)
    assert list(frame.ranks) == [16, 128]
    assert list(frame.ours) == [1.0, 0.9]
    assert math.isnan(frame.theirs[0])
    assert frame.error[1] == 0.9 / 0.63 - 1
    assert frame.share[1] == pytest.approx(0.7, abs=1e-4), "as where a switch gives 7 of 10"
    assert math.isnan(frame.calibrated[1]), "of no other strategy is it known"


@pytest.mark.parametrize("model", ["llama-2-7b", "llama-65b"])
def test_a_sixteenth_is_trained_in_layers_spread_evenly(model: str) -> None:
    full = FULL_SIZE[model]
    layers = sorted(paro_paper.learners(model, "1/16"))
    assert layers[0] == 0, "so that the backward pass goes through all layers"
    assert {after - before for before, after in pairwise(layers)} <= {1, 2}
    whole, trained = paro_paper.sizes(model, "1/16")
    assert whole == full.parameters
    assert abs(trained / whole * 16 - 1) < 0.005
    assert paro_paper.sizes(model, "all").trained == full.parameters


def test_what_is_frozen_is_all_but_that() -> None:
    """Of the model itself, on the meta device."""
    from fnmatch import fnmatchcase

    from streamrace.scenarios.full_size import subject

    with torch.device("meta"):
        model = subject("llama-2-7b").make()
    for trained in ("1/16", "PEFT"):
        patterns = paro_paper.frozen("llama-2-7b", trained)
        left = [name for name, _ in model.named_parameters() if not any(fnmatchcase(name, one) for one in patterns)]
        assert left == [
            f"model.layers.{at}.self_attn.q_proj.weight" for at in sorted(paro_paper.learners("llama-2-7b", trained))
        ]


def test_every_case_is_run_once_and_is_a_job() -> None:
    cases = paro_paper.cases_of(CLAIMS, paro_paper.SCALINGS)
    assert len(cases) == len(set(cases)) == 29
    for case in cases:
        made = paro_paper.job_of(case)
        assert (made.ranks, made.sharding, made.accumulation) == (case.ranks, case.strategy, 10)
    assert Claim("llama-65b", "all", "IIG", "GGG", 1.86).cases[0] == PaperCase("llama-65b", "all", 32, "IIG")


# -- other networks -----------------------------------------------------------------------------------------------


def test_a_sweep_tells_from_where_on_it_pays(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of ZeRO-3 alone, which is what others are set against; the rings are there anyway."""
    shown, words, status = command(capsys, tmp_path, "--sweep", "--compare", "ZeRO-3")
    assert status == 0
    assert max(map(len, shown.splitlines())) <= 80
    assert "rings against a flat ring (1 GB)" in words
    folder = tmp_path / "paro-sweep"
    assert (folder / "sweep.png").read_bytes().startswith(b"\x89PNG")
    frame = pd.read_csv(folder / "sweep.csv")
    assert list(dict.fromkeys(frame.what)) == ["GGG", "flat", "hierarchical", "HO-Ring"]
    assert (frame.gain[frame.what == frame.against] == 1).all()
    rows = frame.set_index(["what", "ratio", "cards"])
    # (n-1)/n V over one card of 100 Gbit/s, and the hops of the ring besides
    card = 100 * fact("network.wire.roce")
    assert rows.seconds["flat", 24, 1] == pytest.approx(31 / 32 * 8 / card, rel=0.01)
    # (g-1)/n V of each of 8 GPUs over their part of the card: what one card gains is what does not pass it twice
    assert rows.gain["HO-Ring", 96, 1] == pytest.approx(31 / 24, rel=0.01)
    assert rows.gain["HO-Ring", 96, 8] == pytest.approx(8 * 31 / 24, rel=0.02)
    begins = paro_sweep.begins_to_pay(frame)
    assert list(begins.index) == ["hierarchical", "HO-Ring"]
    assert list(begins.loc["HO-Ring"]) == [1, 1, 1, 1]


def test_a_ring_timed_anew_is_the_ring_run_there(tmp_path: Path) -> None:
    there = paro_sweep.machines(ratios=(6.0,), cards=(8,))
    profile = there[6.0, 8]
    anew = paro_sweep.ring("HO-Ring", tmp_path / "anew", there)
    assert anew == paro_sweep.ring("HO-Ring", tmp_path / "there", there, recorded=profile)


def test_it_pays_from_where_it_never_again_does_not() -> None:
    gains = {"IIG": [1.2, 1.0, 1.1, 1.3], "NGG": [1.0, 1.0, 1.0, 1.0], "III": [1.1, 1.1, 1.1, 1.1]}
    frame = pd.DataFrame(
        [
            {"what": what, "against": "GGG", "ratio": float(ratio), "cards": 1, "pays": gain >= paro_sweep.PAYS}
            for what, those in gains.items()
            for ratio, gain in zip((3, 6, 12, 24), those, strict=True)
        ]
    )
    begins = paro_sweep.begins_to_pay(frame)[1]
    assert (begins["IIG"], begins["III"]) == (12, 3)
    assert math.isnan(begins["NGG"])


# -- mistakes -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--compare", "NGI"], "the strategy NGI is not legal: its optimizer state (I) is coarser"),
        (["--compare", "ZeRO-9"], "there is no strategy 'ZeRO-9'"),
        (["--group", "3"], "groups of 3 do not divide 4 ranks: choose one of 1, 2, 4"),
        (["--ranks", "3"], "3 ranks cannot be spread evenly over 2 nodes"),
        (["--compare", "NNN", "--without", "gather-before-use"], "NNN has no synchronisation 'gather-before-use'"),
        (["--models", "llama-65b"], "--models has a meaning only with --paper: leave one"),
        (["--paper", "--steps", "4"], "--steps has a meaning only live, without --paper and"),
        (["--sweep", "--group", "2"], "--group has a meaning only live, without --paper and --sweep"),
        (["--paper", "--models", "gpt-18b"], "--models does not know 'gpt-18b': choose from llama-2-7b, llama-65b"),
        (["--paper", "--trainable", "1/2"], "--trainable does not know '1/2': choose from all, 1/16, PEFT"),
        (["--paper", "--models", "llama-65b", "--trainable", "PEFT"], "nothing is compared for llama-65b with PEFT"),
    ],
)
def test_a_mistake_is_one_sentence(
    arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["paro", *arguments, "--runs", str(tmp_path)])
    assert ended.value.code == 2
    shown = capsys.readouterr()
    assert sentence in shown.err
    assert len(shown.err.strip().splitlines()) == 1
    assert not list(tmp_path.iterdir())
