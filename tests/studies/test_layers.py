"""A deep model from a few of its layers is what it is when all are run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from streamrace.metrics import MemoryUse
from streamrace.scenarios import rehearsal
from streamrace.scenarios.job import Job
from streamrace.studies.classes import Comparison
from streamrace.studies.dry_run import Rehearsed, rehearse
from streamrace.studies.layers.extend import extended
from streamrace.studies.layers.pattern import Irregular
from tests.studies.small import model, small

DEPTH = 9
# A layer has 2.9 million elements: the limits count less than a layer, as those of DeepSpeed do at 405 billion.
ZERO = {"allgather_bucket_size": 2_000_000}


def deep(folder: Path, depth: int = DEPTH, **options: object) -> Job:
    made = small(folder, zero=ZERO, **options)
    model(folder, num_hidden_layers=depth)
    return made


def told(found: Rehearsed) -> dict[str, object]:
    memory: MemoryUse = found.memory
    return {
        "peak": (memory.peak, memory.exact_peak, memory.kinds),
        "where": memory.moment and replace(memory.moment, time=0, record=0),
        "phases": memory.phases,
        "sent": found.traffic.as_dict(),
        "counts": (found.operations, found.flops, found.forward_flops, found.parameters),
        "races": [(race.kind, race.first.kernel, race.occurrences, race.manifested) for race in found.races],
        "fits": found.fits,
    }


@pytest.mark.parametrize(
    "options",
    [{"fix": "none", "checkpointing": True}, pytest.param({"hpz": 1, "accumulation": 2}, marks=pytest.mark.wide)],
)
def test_few_layers_foretell_all(tmp_path: Path, options: dict[str, object]) -> None:
    """Bytes, operations, what is sent and races are equal; the step's time to what DeepSpeed's questions take."""
    made = deep(tmp_path / "job", gpus=2, **{"hpz": 2, **options})
    with Comparison(made, tmp_path / "ranks") as ranks:
        few = extended(made, tmp_path / "few", beside=ranks)
        assert {*ranks.read} == {0, 1, 2, 3}  # each is a class, and ran beside the recordings
        assert not any(one.from_first for one in ranks.result(few.sizes).classes)
    assert not (tmp_path / "ranks").exists()
    exact = rehearse(made, tmp_path / "exact", answers=False)
    assert few.extension is not None and max(few.extension.recorded) < DEPTH
    assert told(few) == told(exact)
    assert rehearsal.parameters_of(made, DEPTH) == exact.parameters
    assert few.step_s == pytest.approx(exact.step_s, rel=1e-6)
    asked = rehearse(made, tmp_path / "asked", races=False)  # as '--exact' runs it
    assert few.step_s == pytest.approx(asked.step_s, rel=5e-3)
    assert (few.memory.peak, few.fits) == (asked.memory.peak, asked.fits)


def test_limits_that_few_layers_do_not_reach_are_refused(tmp_path: Path) -> None:
    """DeepSpeed's own limits are larger than this whole model: what it does beyond them was not seen."""
    made = deep(tmp_path / "job").model_copy(update={"config": None})
    with pytest.raises(Irregular, match="DeepSpeed's limits are reached only from"):
        extended(made, tmp_path / "few")
    assert not (tmp_path / "few").exists(), "before any are run"


def test_an_optimizer_in_parts_is_refused(tmp_path: Path) -> None:
    made = small(tmp_path / "job", zero={**ZERO, "sub_group_size": 1_000_000})
    model(tmp_path / "job", num_hidden_layers=DEPTH)
    with pytest.raises(Irregular, match="the optimizer runs over 4 parts of sub_group_size"):
        extended(made, tmp_path / "few")
    assert not (tmp_path / "few").exists(), "before any are run"
