"""``streamrace choose``: the fastest way to shard that fits, the sentence that says why, and the user's mistakes."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from rich.console import Console

from streamrace.reports.screen import choice
from streamrace.repro.__main__ import main
from streamrace.scenarios import rehearsal
from streamrace.scenarios.base import ScenarioError
from streamrace.scenarios.job import Job, job
from streamrace.scenarios.models import FULL_SIZE
from streamrace.scenarios.sharding.formulas import memory
from streamrace.scenarios.sharding.schemes import schemes
from streamrace.scenarios.sharding.strategy import ShardingError
from streamrace.studies.choose import COLUMNS, GIB, KINDS, PEFT, ShardingQuestion, fewest, question, study
from streamrace.studies.dry_run import rehearse
from tests.studies.small import model

BATCH = {"accumulation": 10, "micro_batch": 4, "sequence": 512}  # the paper's, as is its cluster
PAPER = {"model": "65e9", "nodes": 4, "hardware": "paper.toml", **BATCH}
# Two bandwidths, as the paper counts: every GPU has a card of its own.
MACHINE = """
description = "2 Tbit/s within a node, 80 Gbit/s of each GPU between nodes"
tflops = 312.0
efficiency = 0.5
memory_gbytes_per_s = 2039.0
kernel_us = 2.0
launch_us = 5.0
synchronize_us = 10.0
intra_node_gbits_per_s = 2000.0
inter_node_gbits_per_s = 80.0
node_gbits_per_s = 640.0
intra_node_latency_us = 3.0
inter_node_latency_us = 15.0
"""


@pytest.fixture(autouse=True)
def _surroundings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A terminal of 80 columns, however wide the one is that the tests run in, and the paper's machine at hand."""
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.chdir(tmp_path)
    Path("paper.toml").write_text(MACHINE)


def command(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[str, str]:
    """What ``choose`` prints: all of it, and the same without line breaks."""
    main(["choose", *arguments])
    shown = capsys.readouterr().out
    return shown, " ".join(shown.split())


def as_options(options: Mapping[str, Any]) -> list[str]:
    return [word for name, value in options.items() for word in (f"--{name.replace('_', '-')}", str(value))]


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    with pytest.raises(SystemExit) as ended:
        main(["choose", *arguments])
    assert ended.value.code == 2
    shown = capsys.readouterr()
    assert not shown.out
    return shown.err.strip()


def rows(shown: str) -> dict[str, list[str]]:
    """The table's rows, by strategy."""
    known = {str(one) for one in schemes()}
    lines = shown[shown.index("─") :].splitlines()
    return {line.split()[0]: line.split() for line in lines if line and line.split()[0] in known}


def asked(**options: Any) -> ShardingQuestion:
    own = {name: options.pop(name) for name in options.keys() - Job.model_fields}
    return question(job(**{"sharding": "GGG", **PAPER, **options}), **own)


def said(**options: Any) -> str:
    made = asked(**options)
    return choice.sentence(study(made), made)


# -- the command --------------------------------------------------------------------------------------------------


def test_the_papers_65_billion_on_the_papers_cluster(capsys: pytest.CaptureFixture[str]) -> None:
    shown, words = command(capsys, *as_options(PAPER))
    assert (
        "IIG (PaRO-IIG) is the fastest of the 5 that fit 80 GiB: 51.2 s a step, 7.38 times as fast as ZeRO-3, as "
        "nothing crosses between groups but at the end of a step, and its 16.1 s of communication hide behind 51.2 s "
        "of computing."
    ) in words
    assert "not counted are activations (--activations keeps room for them), gathered parameters and buffers" in words
    table = rows(shown)
    assert list(table)[:5] == ["IIG", "IGG", "hpZ", "GIG", "GGG"]
    assert table["IIG"] == ["IIG", "15.1", "15.1", "22.7", "53.0", "fits", "16.1", "51.2", "51.2", "12,800", "7.38"]
    assert table["hpZ"][1:8] == ["ZeRO++", "3.78", "15.1", "3.78", "22.7", "45.4", "fits"]
    assert table["NGG"][5:7] == ["148", "67.6"]
    assert len(table) == 15
    assert max(map(len, shown.splitlines())) <= 80


def test_a_model_by_name_on_the_default_hardware(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "choice.csv"
    _, words = command(
        capsys, *as_options({"model": "llama-2-65b", "nodes": 4, "hardware": "dgx-a100-roce", **BATCH, "csv": file})
    )
    assert words.startswith("llama-65b: 65.29 billion parameters, all trained, bf16; 32 GPUs of 80 GiB, 8 on a node")
    assert "dgx-a100-roce; Gbit/s of a GPU: 1920 within, 56 between, 448 across" in words
    assert words.endswith(f"File: {file}")
    frame = pd.read_csv(file)
    assert list(frame.columns) == list(COLUMNS)
    assert list(frame.strategy[frame.fits]) == ["IIG", "IGG", "hpZ", "GIG", "GGG"]
    assert list(frame.strategy[frame.best]) == ["IIG", "IGG", "hpZ"], "with all cards they all hide behind computing"
    assert frame.set_index("strategy").total["GGG"] == 16 * FULL_SIZE["llama-65b"].parameters / 32


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--model", "llama-3"], "there is no model 'llama-3': choose one of llama-2-7b, "),
        (["--model", "nan"], "a model has a number of parameters from 1 on, for example 65e9, not nan"),
        (
            ["--model", "7e9", "--compare", "NGI"],
            "the strategy NGI is not legal: its optimizer state (I) is coarser",
        ),
        (["--model", "7e9", "--compare", "IIG,ZeRO-9"], "there is no strategy 'ZeRO-9'"),
        (["--model", "7e9", "--group", "6"], "groups of 6 do not divide 16 ranks: choose one of 1, 2, 4, 8, 16"),
        (
            ["--model", "7e9", "--gpus", "6", "--nodes", "4", "--group", "4"],
            "groups of 4 would end in the middle of nodes of 6 GPUs",
        ),
        (["--model", "7e9", "--hardware", "b17"], "there is no hardware profile 'b17': choose one of a100-100gbps"),
        (["--model", "7e9", "--trainable", "2"], "--trainable takes a part of all parameters, for example 1, 1/16"),
        (["--model", "7e9", "--trainable", "1/0"], "not '1/0'"),
        (["--model", "7e9", "--network", "-1"], "network: Input should be greater than or equal to 0.000001"),
        (["--model", "7e9", "--network", "inf"], "network: Input should be less than or equal to 1000000000"),
        (["--model", "7e9", "--gpu-memory", "nan"], "--gpu-memory takes a number above 0, not nan"),
        (["--model", "7e9", "--activations", "80"], "--activations 80 leaves nothing of 80 GiB: give less"),
        (["--model", "7e9", "--precision", "fp8"], "'fp8' is not one of 'bf16', 'fp32'"),
        (["--model", "7e9", "--csv", "no/such/folder.csv"], "cannot write the table to no/such/folder.csv: "),
        (["--model", "7e9", "--nodes", "0"], "nodes: Input should be greater than or equal to 1"),
        (
            ["--model", "140e9", "--nodes", "2"],
            "140e9 on 16 GPUs: no way to shard fits 80 GiB; GGG (ZeRO-3) needs least",
        ),
    ],
)
def test_a_mistake_is_one_sentence(
    arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    Path("paper.toml").unlink()
    shown = refused(capsys, *arguments)
    assert sentence in shown
    assert "Traceback" not in shown
    assert "--precision" in arguments or len(shown.splitlines()) == 1
    assert not list(tmp_path.iterdir())


# -- the sentence -------------------------------------------------------------------------------------------------


def test_what_would_be_faster_with_more_memory_is_named_by_the_least_that_it_needs() -> None:
    """IIG, III, NIG and more would be as fast as computing is: IIG is what comes nearest."""
    text = said(nodes=2, gpu_memory=75.0)
    assert text.startswith("IGG (PaRO-IGG) is the fastest of the 3 that fit 75 GiB: ")
    assert "in every micro-batch only gradients cross between groups, and it waits for " in text
    assert text.endswith("; IIG (PaRO-IIG) would take 51.2 s, but needs 75.7 GiB.")


def test_zero_3_is_not_compared_with_itself() -> None:
    text = said(gpu_memory=41.0)
    assert text.startswith("GGG (ZeRO-3) is the only one that fits 41 GiB: 378 s a step, as in every micro-batch ")
    assert "parameters and gradients cross between groups, and it waits for 378 s of communication" in text


def test_those_that_are_equally_fast_are_told_apart_by_what_else_they_need() -> None:
    text = said(model="7e9", trainable="1/16")
    assert text == (
        "NNI, NII, NIG (PaRO-NIG) and 9 more are the fastest, equally, of the 15 that fit 80 GiB: 3.79 s a step, 7.38 "
        "times as fast as ZeRO-3, as all of them compute for longer than they communicate; NNI communicates least "
        "(0.023 s), IGG (PaRO-IGG) needs least memory (1.8 GiB)."
    )


def test_sums_in_another_order_are_equal() -> None:
    """III and IIG exchange the same, twice 2X for X and X: their floats differ in the last bit.

    Since Python 3.12 ``sum`` carries what it rounds off, and they do not.
    """
    made = asked(model="7e9", micro_batch=1, sequence=8, strategies=("III", "IIG"))
    frame = study(made)
    assert frame.communication_s.nunique() == (2 if sys.version_info < (3, 12) else 1)
    assert list(frame.strategy) == ["IIG", "III"] and frame.best.all()  # the one that needs less comes first
    assert "IIG (PaRO-IIG) and III (MiCS) are the fastest, equally, of the 2" in choice.sentence(frame, made)
    assert "IIG (PaRO-IIG) communicates least (1.73 s) and needs least memory (5.7 GiB)" in choice.sentence(frame, made)


def test_on_one_node_nothing_is_said_of_groups() -> None:
    text = said(model="7e9", nodes=1, strategies=("GGG",))
    assert text.endswith("of computing.") and "group" not in text
    assert "in one group" in choice.title(asked(nodes=1))


def test_room_for_activations_is_left_and_said() -> None:
    assert "of the 4 that fit 80 GiB with 30 GiB for activations: " in said(activations=30.0)
    made = asked(activations=30.0)
    console = Console(file=StringIO(), width=200, record=True)
    choice.show(console, study(made), made)
    assert "30 GiB are kept free for activations; not counted are gathered parameters" in console.export_text()
    frame = study(made).set_index("strategy")
    assert not frame.fits["IIG"] and frame.over["IIG"] == 56.875e9 - 50 * GIB
    assert frame.fits["hpZ"] and frame.over["hpZ"] == 0


# -- the frame ----------------------------------------------------------------------------------------------------


def test_the_frame_adds_up() -> None:
    frame = study(asked())
    assert (frame[list(KINDS)].sum(axis=1) == frame.total).all()
    assert (frame.step_s == frame[["communication_s", "computation_s"]].max(axis=1)).all()
    assert (frame.fits == (frame.over == 0)).all()
    assert frame.set_index("strategy").relative["GGG"] == 1
    assert (frame.tokens_per_s * frame.step_s).round(6).nunique() == 1
    assert (frame.computation_s == 6 * 65e9 * 10 * 4 * 512 / (312e12 * 0.5)).all()


def test_to_fit_exactly_is_to_fit() -> None:
    assert study(asked(gpu_memory=32.5e9 / GIB)).set_index("strategy").fits["GGG"]
    with pytest.raises(ShardingError):
        study(asked(gpu_memory=32.4999e9 / GIB))


def test_only_what_is_asked_for_is_compared_and_still_with_zero_3() -> None:
    frame = study(asked(strategies=("hpZ", "iig", "PaRO-IIG")))
    assert list(frame.strategy) == ["IIG", "hpZ"]
    assert list(frame.relative) == list(study(asked()).set_index("strategy").relative[["IIG", "hpZ"]])


def test_what_is_trained() -> None:
    assert asked(trainable="1/16").size.trained == 65e9 / 16
    assert asked(trainable="0.25").size.trained == 65e9 / 4
    assert asked(trainable="PEFT").size.trained == 65e9 * PEFT
    some, all_ = (study(asked(trainable=part)).set_index("strategy") for part in ("1/16", "1"))
    assert (some.gradients == all_.gradients[some.index] / 16).all()
    assert (some.parameters == all_.parameters[some.index]).all()


def test_a_network_of_ones_own_leaves_the_rest_as_the_hardware_has_it() -> None:
    def links(**own: Any) -> list[float]:
        return list(asked(model="7e9", hardware="dgx-a100-roce", **own).links.values())

    assert links() == [1920, 56, 448], "NVLink as NCCL gets it; a ring over all has a node's cards together"
    of_one_card = links(network=25.0)
    assert of_one_card[0] == 1920
    assert of_one_card[2] == 8 * of_one_card[1] == pytest.approx(25, rel=0.06), "8 rings between groups share it"
    assert asked(group=1).links == {"between": 80, "across": 80}, "groups of one are all ranks"


@pytest.mark.parametrize("gbits", [25.0, 100.0])
def test_the_answer_is_that_of_dry_runs_on_an_ethernet_cluster(
    gbits: float, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """ZeRO-3 against IIG, both by our engine, where communication takes nearly all of a step.

    The formulas have no latency, and hide computing or communication wholly: 4 % is what both take here.
    """
    rehearsal.preload()
    options = {"model": model(tmp_path, hidden_size=2048, intermediate_size=5504), "nodes": 4, "network": gbits}
    short = {**options, "sequence": 128}
    runs = {
        way: rehearse(job(sharding=way, **short), tmp_path / way, answers=False, races=False) for way in ("GGG", "IIG")
    }
    assert all(run.step.exposed > 0.9 * run.step.time for run in runs.values())
    main(["choose", *as_options(short), "--format", "json"])
    found = {row["strategy"]: row for row in json.loads(capsys.readouterr().out)["strategies"]}
    assert found["IIG"]["relative"] == pytest.approx(runs["GGG"].step_s / runs["IIG"].step_s, rel=0.04)
    for way, run in runs.items():
        assert found[way]["step_s"] == pytest.approx(run.step_s, rel=0.06)


@pytest.mark.parametrize(
    ("options", "found"),
    [
        ({}, 16),  # 16 x 65e9 bytes / 80 GiB: 13 GPUs at least, in whole nodes
        ({"activations": 20.0}, 24),
        ({"group": 32}, 32),
        ({"strategies": ("IIG",)}, 16),
        ({"strategies": ("IIG",), "gpu_memory": 75.0}, 24),
        ({"strategies": ("NNG", "NNN")}, None),  # parameters and gradients alone are 260e9 bytes
        ({"gpu_memory": 1e-9}, None),
    ],
)
def test_the_fewest_gpus_that_would_do(options: dict[str, Any], found: int | None) -> None:
    made = asked(**options)
    assert fewest(made) == found
    if found is not None:
        unit = max(made.cluster.gpus, made.cluster.group)
        for ranks in range(unit, found + 1, unit):
            cluster = replace(made.cluster, ranks=ranks)
            needs = min(memory(one, made.size, cluster).total for one in made.schemes)
            assert (needs <= made.room) == (ranks == found)


def test_what_fits_nowhere_is_told_how_many_gpus_would_do() -> None:
    with pytest.raises(ShardingError) as raised:
        study(asked(nodes=1))
    assert str(raised.value) == (
        "65e9 on 8 GPUs: no way to shard fits 80 GiB; GGG (ZeRO-3) needs least, 121.1 GiB of model states; 16 GPUs "
        "would do (2 nodes of 8)"
    )
    with pytest.raises(ShardingError, match="none of the 2 ways to shard that were asked for fits 70 GiB; .* 24 GPUs"):
        study(asked(nodes=2, gpu_memory=70.0, strategies=("IIG", "III")))
    with pytest.raises(ShardingError, match="it does not fit 80 GiB; .* no number of GPUs would do, as a part"):
        study(asked(strategies=("DDP",)))


def test_the_paper_calls_llama_65b_so() -> None:
    assert asked(model="llama-2-65b") == asked(model="llama-65b")
    with pytest.raises(ScenarioError, match="a number of parameters from 1 on"):
        asked(model="0")


def test_a_models_configuration_is_counted(tmp_path: Path) -> None:
    layer = 4 * 512 * 512 + 3 * 512 * 1376 + 2 * 512
    assert asked(model=model(tmp_path)).size.parameters == 4 * layer + 2 * 1024 * 512 + 512
