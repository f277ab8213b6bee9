"""``streamrace choose``: the fastest way to shard that fits, the sentence that says why, and the user's mistakes."""

from __future__ import annotations

import sys
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from rich.console import Console

from streamrace.reports.screen import choice
from streamrace.repro.__main__ import main
from streamrace.scenarios.base import ScenarioError
from streamrace.scenarios.models import FULL_SIZE
from streamrace.scenarios.sharding.formulas import memory
from streamrace.scenarios.sharding.schemes import schemes
from streamrace.scenarios.sharding.strategy import ShardingError
from streamrace.studies.choose import COLUMNS, GB, KINDS, PEFT, ShardingQuestion, fewest, question, study

PAPER = {"model": "65e9", "gpu_memory": 80.0, "within": 2000.0, "between": 80.0}


@pytest.fixture(autouse=True)
def _narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    """A terminal of 80 columns, however wide the one is that the tests run in."""
    monkeypatch.setenv("COLUMNS", "80")


def command(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[str, str]:
    """What ``choose`` prints: all of it, and the same without line breaks."""
    main(["choose", *arguments])
    shown = capsys.readouterr().out
    return shown, " ".join(shown.split())


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
    return question(**{**PAPER, **options})


def said(**options: Any) -> str:
    made = asked(**options)
    return choice.sentence(study(made), made)


# -- the command --------------------------------------------------------------------------------------------------


def test_the_papers_65_billion_on_the_papers_cluster(capsys: pytest.CaptureFixture[str]) -> None:
    shown, words = command(capsys, "--model", "65e9", "--gpu-memory", "80", "--within", "2000", "--between", "80")
    assert (
        "IIG (PaRO-IIG) is the fastest of the 5 that fit 80 GB: 51.2 s a step, 7.38 times as fast as ZeRO-3, as "
        "nothing crosses between groups but at the end of a step, and its 16.1 s of communication hide behind 51.2 s "
        "of computing."
    ) in words
    assert "not counted are activations (--activations keeps room for them), gathered parameters and buffers" in words
    table = rows(shown)
    assert list(table)[:5] == ["IIG", "IGG", "hpZ", "GIG", "GGG"]
    assert table["IIG"] == ["IIG", "16.2", "16.2", "24.4", "56.9", "fits", "16.1", "51.2", "51.2", "12,800", "7.38"]
    assert table["hpZ"][1:8] == ["ZeRO++", "4.06", "16.2", "4.06", "24.4", "48.8", "fits"]
    assert table["NGG"][5:7] == ["158", "78.4"]
    assert len(table) == 15
    assert max(map(len, shown.splitlines())) <= 80


def test_a_model_by_name_on_the_default_hardware(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "choice.csv"
    _, words = command(capsys, "--model", "llama-2-65b", "--csv", str(file))
    assert words.startswith("llama-65b: 65.29 billion parameters, all trained, bf16; 32 GPUs of 80 GB, 8 on a node")
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
        (["--model", "nan"], "or give a number of parameters, for example 65e9"),
        (
            ["--model", "7e9", "--strategies", "NGI"],
            "the strategy NGI is not legal: its optimizer state (I) is coarser",
        ),
        (["--model", "7e9", "--strategies", "IIG,ZeRO-9"], "there is no strategy 'ZeRO-9'"),
        (["--model", "7e9", "--group", "6"], "groups of 6 do not divide 32 ranks: choose one of 1, 2, 4, 8, 16, 32"),
        (["--model", "7e9", "--gpus", "6", "--group", "4"], "groups of 4 would end in the middle of nodes of 6 GPUs"),
        (["--model", "7e9", "--hardware", "b17"], "there is no hardware profile 'b17': choose one of a100-100gbps"),
        (["--model", "7e9", "--trainable", "2"], "--trainable takes a part of all parameters, for example 1, 1/16"),
        (["--model", "7e9", "--trainable", "1/0"], "not '1/0'"),
        (["--model", "7e9", "--between", "-1"], "--between takes a number above 0, not -1"),
        (["--model", "7e9", "--within", "inf"], "--within takes a number above 0, not inf"),
        (["--model", "7e9", "--gpu-memory", "nan"], "--gpu-memory takes a number above 0, not nan"),
        (["--model", "7e9", "--activations", "80"], "--activations 80 leaves nothing of 80 GB for the model"),
        (["--model", "7e9", "--precision", "fp8"], "there is no precision 'fp8': choose one of bf16, fp32"),
        (["--model", "7e9", "--csv", "no/such/folder.csv"], "cannot write the table to no/such/folder.csv: "),
        (["--model", "7e9", "--nodes", "0"], "Invalid value for '--nodes'"),
        (
            ["--model", "130e9", "--nodes", "2"],
            "130e9 on 16 GPUs: no way to shard fits 80 GB; GGG (ZeRO-3) needs least",
        ),
    ],
)
def test_a_mistake_is_one_sentence(
    arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    shown = refused(capsys, *arguments)
    assert sentence in shown
    assert "Traceback" not in shown
    assert "--nodes" in arguments[2:3] or len(shown.splitlines()) == 1
    assert not list(tmp_path.iterdir())


# -- the sentence -------------------------------------------------------------------------------------------------


def test_what_would_be_faster_with_more_memory_is_named_by_the_least_that_it_needs() -> None:
    """IIG, III, NIG and more would be as fast as computing is: IIG is what comes nearest."""
    text = said(nodes=2)
    assert text.startswith("IGG (PaRO-IGG) is the fastest of the 3 that fit 80 GB: ")
    assert "in every micro-batch only gradients cross between groups, and it waits for " in text
    assert text.endswith("; IIG (PaRO-IIG) would take 51.2 s, but needs 81.2 GB.")


def test_zero_3_is_not_compared_with_itself() -> None:
    text = said(gpu_memory=44.0)
    assert text.startswith("GGG (ZeRO-3) is the only one that fits 44 GB: 378 s a step, as in every micro-batch ")
    assert "parameters and gradients cross between groups, and it waits for 378 s of communication" in text


def test_those_that_are_equally_fast_are_told_apart_by_what_else_they_need() -> None:
    text = said(model="7e9", trainable="1/16")
    assert text == (
        "NNI, NII, NIG (PaRO-NIG) and 9 more are the fastest, equally, of the 15 that fit 80 GB: 3.79 s a step, 7.38 "
        "times as fast as ZeRO-3, as all of them compute for longer than they communicate; NNI communicates least "
        "(0.023 s), IGG (PaRO-IGG) needs least memory (1.9 GB)."
    )


def test_sums_in_another_order_are_equal() -> None:
    """III and IIG exchange the same, twice 2X for X and X: their floats differ in the last bit.

    Since Python 3.12 ``sum`` carries what it rounds off, and they do not.
    """
    made = asked(model="7e9", sequence=1, strategies=("III", "IIG"))
    frame = study(made)
    assert frame.communication_s.nunique() == (2 if sys.version_info < (3, 12) else 1)
    assert list(frame.strategy) == ["IIG", "III"] and frame.best.all()  # the one that needs less comes first
    assert "IIG (PaRO-IIG) and III (MiCS) are the fastest, equally, of the 2" in choice.sentence(frame, made)
    assert "IIG (PaRO-IIG) communicates least (1.73 s) and needs least memory (6.1 GB)" in choice.sentence(frame, made)


def test_on_one_node_nothing_is_said_of_groups() -> None:
    text = said(model="7e9", nodes=1, strategies=("GGG",))
    assert text.endswith("of computing.") and "group" not in text
    assert "in one group" in choice.title(asked(nodes=1))


def test_room_for_activations_is_left_and_said() -> None:
    assert "of the 4 that fit 80 GB with 30 GB for activations: " in said(activations=30.0)
    made = asked(activations=30.0)
    console = Console(file=StringIO(), width=200, record=True)
    choice.show(console, study(made), made)
    assert "30 GB are kept free for activations; not counted are gathered parameters" in console.export_text()
    frame = study(made).set_index("strategy")
    assert not frame.fits["IIG"] and frame.over["IIG"] == (56.875 - 50) * GB
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
    assert study(asked(gpu_memory=32.5)).set_index("strategy").fits["GGG"]
    with pytest.raises(ShardingError):
        study(asked(gpu_memory=32.4999))


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


def test_one_bandwidth_of_ones_own_leaves_the_other_as_the_hardware_has_it() -> None:
    def links(**own: Any) -> list[float]:
        return list(question(model="7e9", **own).links.values())

    assert links() == [1920, 56, 448], "NVLink as NCCL gets it; a ring over all has a node's cards together"
    assert links(within=1000) == [1000, 56, 448]
    assert links(between=40) == [1920, 40, 40]
    assert question(model="7e9", group=1).links == {"between": 448, "across": 448}  # then the two are one


@pytest.mark.parametrize(
    ("options", "found"),
    [
        ({}, 16),  # 16 x 65 / 80 = 13 GPUs at least, in whole nodes
        ({"activations": 20.0}, 24),
        ({"group": 32}, 32),
        ({"strategies": ("IIG",)}, 24),
        ({"strategies": ("NNG", "NNN")}, None),  # parameters and gradients alone are 260 GB
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
        "65e9 on 8 GPUs: no way to shard fits 80 GB; GGG (ZeRO-3) needs least, 130.0 GB of model states; 16 GPUs would "
        "do (2 nodes of 8)"
    )
    with pytest.raises(ShardingError, match="none of the 2 ways to shard that were asked for fits 80 GB; .* 24 GPUs"):
        study(asked(nodes=2, strategies=("IIG", "III")))
    with pytest.raises(ShardingError, match="it does not fit 80 GB; .* no number of GPUs would do, as a part of it is"):
        study(asked(strategies=("DDP",)))


def test_the_paper_calls_llama_65b_so() -> None:
    assert question(model="llama-2-65b") == question(model="llama-65b")
    with pytest.raises(ScenarioError, match="there is no model"):
        question(model="0")
