"""The study of the secondary copy's memory: what it measures is the formula, and it says where things stop fitting."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest

from streamrace.reports.pictures import memory as memory_chart
from streamrace.reports.pictures.figures import png
from streamrace.scenarios import rehearsal
from streamrace.scenarios.base import ScenarioError
from streamrace.scenarios.full_size import subject
from streamrace.studies.memory import AT_PEAK, COLUMNS, GIB, KINDS, MODELS, MemoryCase, cases, limits, study

SMALL = {"nodes": 2, "gpus": 4, "sequence": 64}
RANKS = 8


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Its norms have 42 elements: padding on 8 ranks."""
    path = tmp_path_factory.mktemp("model") / "config.json"
    sizes = {"hidden_size": 42, "intermediate_size": 101, "num_attention_heads": 3, "num_key_value_heads": 3}
    path.write_text(json.dumps({"model_type": "llama", "num_hidden_layers": 1, "vocab_size": 256, **sizes}))
    return str(path)


@pytest.fixture(scope="module")
def frame(model: str, tmp_path_factory: pytest.TempPathFactory) -> pd.DataFrame:
    rehearsal.preload()
    folder = tmp_path_factory.mktemp("study")
    found = study(cases([model], [2, 4], qwz=False), folder, workers=1, **SMALL)
    assert not list(folder.iterdir())  # traces are large
    return found


def test_what_is_measured_is_the_formula_within_the_padding(frame: pd.DataFrame, model: str) -> None:
    assert list(frame.columns) == list(COLUMNS)
    assert list(frame.group) == [1, 2, 4]
    sizes = [one.numel() for one in subject(model).make().parameters()]
    assert set(frame.parameters) == {sum(sizes)}
    padded = sum(-(-size // RANKS) * RANKS for size in sizes)
    assert padded > sum(sizes)
    assert list(frame.secondary) == [0, 2 * padded // 2, 2 * padded // 4]
    assert list(frame.formula) == [0, 2 * sum(sizes) / 2, 2 * sum(sizes) / 4]
    assert frame.error.isna().tolist() == [True, False, False]
    assert (frame.error[1:] == padded / sum(sizes) - 1).all()


def test_the_peak_is_the_sum_of_its_kinds(frame: pd.DataFrame) -> None:
    """A secondary copy is dropped at the step and made anew as parameters are released: of a small model at the end.

    So at this peak, in the backward pass, there is none; that of a large model has it.
    """
    assert (frame[list(AT_PEAK)].sum(axis=1) == frame.peak).all()
    assert (frame.peak_secondary == 0).all() and (frame.secondary[1:] > 0).all()


def test_the_largest_models_are_told_where_they_stop_fitting() -> None:
    rows = [("a", 10, 1, 10.0), ("b", 30, 1, 30.0), ("c", 50, 1, 50.0), ("a", 10, 8, 12.0), ("b", 30, 8, 36.0)]
    frame = pd.DataFrame(
        [(name, size * 10**9, group, False, peak * GIB) for name, size, group, peak in rows],
        columns=["model", "parameters", "group", "qwz", "peak"],
    )
    found = limits(frame).set_index(["group", "card"])
    assert list(found.loc[(1, 40), ["fits", "fails", "beyond"]]) == ["b", "c", False]
    assert found.loc[(1, 40), "parameters"] == pytest.approx(40e9)
    assert list(found.loc[(1, 80), ["fits", "fails", "beyond"]]) == ["c", "", True]
    assert found.loc[(1, 80), "parameters"] == pytest.approx(80e9)
    assert list(found.loc[(8, 40), ["fits", "fails", "beyond"]]) == ["b", "", True]
    assert found.loc[(8, 40), "parameters"] == pytest.approx(30e9 + 4e9 / 1.2)


def test_one_model_alone_has_no_limit(frame: pd.DataFrame) -> None:
    assert limits(frame).empty


def test_what_nobody_says_is_a_few_minutes_work() -> None:
    todo = cases()
    assert {case.model for case in todo} == set(MODELS)
    assert [case.configuration for case in todo if case.model == "llama-2-13b"] == ["no hpZ", "hpZ 8", "hpZ 8 + qwZ"]
    assert [case.group for case in todo if case.model == "llama-2-70b"] == [1, 2, 4, 8, 8, 16]
    assert len(todo) == 24
    assert [case.group for case in cases(ranks=8) if case.model == "llama-2-7b"] == [1, 2, 4, 8, 8]
    assert cases(["llama-65b"], [16]) == [
        MemoryCase("llama-65b", 1, False),
        MemoryCase("llama-65b", 16, False),
        MemoryCase("llama-65b", 16, True),
    ]
    assert cases(["llama-65b"], qwz=True) == [MemoryCase("llama-65b", 1, False), MemoryCase("llama-65b", 8, True)]


def test_a_group_that_does_not_divide_is_one_sentence(model: str, tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match="an hpZ group of 3 does not divide 8 GPUs"):
        study([MemoryCase(model, 3, False)], tmp_path, workers=1, **SMALL)


def test_the_picture_is_drawn(frame: pd.DataFrame, tmp_path: Path) -> None:
    assert {kind for _, kinds, _ in memory_chart.PARTS for kind in kinds} == set(KINDS), "each kind has a colour"
    png(memory_chart.charts({"memory": frame})["memory"].figure, tmp_path / "memory.png")
    assert (tmp_path / "memory.png").read_bytes().startswith(b"\x89PNG")
