"""What the race does to the loss on questions that were not trained on."""

from __future__ import annotations

from pathlib import Path

import pytest

from papers.studies.validation import CONFIGURATIONS, scenarios, study
from streamrace.scenarios import mmlu
from streamrace.scenarios.base import ScenarioError
from streamrace.scenarios.scenario import scenario


def test_hpz_learns_as_zero_3_does_and_its_race_makes_the_held_out_loss_another(tmp_path: Path) -> None:
    frame = study(scenarios(steps=4), tmp_path, every=2, workers=1)
    assert list(dict.fromkeys(frame.configuration)) == list(CONFIGURATIONS)
    held_out = frame.pivot(index="step", columns="configuration", values="validation_loss")
    assert held_out.notna().all(axis=1).tolist() == [False, True, False, True]
    zero3, hpz, racing = (held_out.loc[4, name] for name in CONFIGURATIONS)
    assert zero3 == hpz < racing
    assert frame[frame.configuration != list(CONFIGURATIONS)[2]].equal.all()
    assert not list(tmp_path.iterdir())


def test_what_is_held_out_is_not_trained_on() -> None:
    one = scenario()
    trained, held_out = one.questions(["dev", "test"]), one.questions(["val"])
    assert sorted(map(str, trained + held_out)) == sorted(map(str, one.questions()))
    assert held_out and not set(held_out) & set(trained)


def test_a_source_without_the_split_is_refused_by_its_name(tmp_path: Path) -> None:
    with pytest.raises(mmlu.DataError, match=r"no CSV file in val/; give the folder that holds dev/, val/ and test/"):
        mmlu.load(tmp_path, ["val"])


def test_our_own_engine_has_no_evaluation_and_says_so() -> None:
    with pytest.raises(ScenarioError, match="validation is of DeepSpeed: leave sharding out"):
        scenarios(sharding="IIG", hpz=1)
