"""What a scenario and a job share is described once, and their order, which tokens and files follow, is their own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from streamrace.scenarios.base import Only, ScenarioError
from streamrace.scenarios.job import Job, job
from streamrace.scenarios.scenario import Scenario, scenario

SHARED = [name for name in Scenario.model_fields if name in Job.model_fields]


def test_shared_fields_have_one_type_one_bound_and_one_description() -> None:
    assert len(SHARED) == 20
    one, other = Scenario.model_fields, Job.model_fields
    assert [name for name in SHARED if one[name].annotation != other[name].annotation] == ["model"]
    assert [name for name in SHARED if one[name].metadata != other[name].metadata] == []
    assert [name for name in SHARED if one[name].description != other[name].description] == ["model", "steps"]


@pytest.mark.parametrize("make", [scenario, job])
@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"slow": {"x": 2}}, "slow pattern 'x' must begin with stream:, kernel:, link:, rank: or host"),
        ({"slow": {"host": 0}}, "slow factor of 'host' must be above 0, not 0.0"),
        ({"group": 2}, "--group is of our own engine: name a strategy too, --sharding IIG for one"),
        ({"rings": "flat"}, "--rings is of our own engine: name a strategy too, --sharding IIG for one"),
        (
            {"sharding": "IIG", "qwz": True},
            "--qwz is DeepSpeed's, and --sharding does without DeepSpeed: leave one out",
        ),
        ({"sharding": "IIG", "group": 3, "hpz": 1}, "groups of 3 do not divide"),
    ],
)
def test_both_refuse_alike(make: type[Scenario | Job], options: dict[str, object], said: str) -> None:
    with pytest.raises(ScenarioError) as error:
        make(**options)
    assert str(error.value).startswith(said)


def test_a_deepspeed_json_decides_what_it_can_and_options_the_rest(tmp_path: Path) -> None:
    file = tmp_path / "ds.json"

    def sizes(said: dict[str, object], **options: object) -> dict[str, object]:
        file.write_text(json.dumps(said))
        whole = job(config=str(file), **options).deepspeed_config(None)
        return {name: value for name, value in whole.items() if "batch" in name or "accumulation" in name}

    micro, steps = "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"
    assert sizes({}) == {micro: 1}
    assert sizes({}, micro_batch=2, accumulation=4) == {micro: 2, steps: 4}
    assert sizes({micro: "auto", steps: "auto", "train_batch_size": "auto"}) == {micro: 1, steps: 1}
    alone = {"train_batch_size": 64, steps: 2}  # DeepSpeed divides by the ranks: 2 micro-batches of 2 on 16
    assert sizes(alone) == alone
    assert sizes(alone, micro_batch=2) == {**alone, micro: 2}


def test_each_says_ranks_in_its_own_word() -> None:
    with pytest.raises(ScenarioError, match="does not divide 4 ranks: choose one of 1, 2, 4"):
        scenario(hpz=3)
    with pytest.raises(ScenarioError, match="does not divide 16 GPUs: choose one of 1, 2, 4, 8, 16"):
        job(hpz=3)


def test_what_one_engine_alone_knows_is_marked_at_the_field() -> None:
    of_deepspeed = {name for name, field in Scenario.model_fields.items() if Only.DEEPSPEED in field.metadata}
    assert {"hpz", "fix", "deepspeed", "watch"} < of_deepspeed
    assert {name for name, field in Job.model_fields.items() if Only.ENGINE in field.metadata} == {"group", "rings"}
