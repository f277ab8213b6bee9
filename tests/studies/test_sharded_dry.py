"""Jobs under our own engine, rehearsed: no race, memory and bytes as the formulas say, and live bits of the trace."""

from __future__ import annotations

from pathlib import Path

import pytest
from transformers import LlamaConfig, LlamaForCausalLM

from streamrace.scenarios import rehearsal
from streamrace.scenarios.job import job
from streamrace.scenarios.sharding.formulas import Size, exchanges, padded_memory, sent
from streamrace.scenarios.sharding.layout import padded
from streamrace.scenarios.sharding.schemes import Cluster, scheme
from streamrace.scenarios.sharding.units import units_of
from streamrace.studies.dry_run import Rehearsed, rehearse
from tests.studies.small import MODEL, model

CLUSTER = Cluster(ranks=16, group=8, gpus=8)


def rehearsed(folder: Path, **options: object) -> Rehearsed:
    folder.mkdir(exist_ok=True)
    rehearsal.preload()
    common = {"nodes": 2, "gpus": 8, "sequence": 256, "hardware": "dgx-a100-roce", "accumulation": 2}
    return rehearse(job(model=model(folder), **{**common, **options}), folder)


@pytest.mark.parametrize("letters", ["IIG", "NIG", "GGG"])
def test_memory_and_bytes_of_a_rehearsed_job_are_those_of_the_formulas(letters: str, tmp_path: Path) -> None:
    found = rehearsed(tmp_path, sharding=letters)
    assert not found.races
    shape = {name: value for name, value in MODEL.items() if name not in ("model_type", "architectures")}
    units = [
        sum(value.numel() for _, value in unit.parameters)
        for unit in units_of(LlamaForCausalLM(LlamaConfig(**shape)))  # type: ignore[no-untyped-call]
    ]
    one = scheme(letters)
    kept = padded_memory(one, units, CLUSTER)
    kinds = found.memory.kind_peaks
    assert kinds["primary"] == kept.parameters
    assert kinds["gradient"] == kept.gradients
    assert kinds["master"] + kinds["optimizer"] == kept.state
    whole = sum(padded(unit, CLUSTER.ranks) for unit in units)
    said = sent(exchanges(one, Size(whole, whole), CLUSTER, accumulation=2), CLUSTER)
    last = found.traffic.only(step=found.step.step)
    norm = last.only(kernel="all_reduce")  # of all gradients, that they are clipped by: one number
    assert [flow.nominal for flow in norm.flows] == [4]
    assert last.within - norm.within == said.within
    assert last.between - norm.between == said.between


def test_ho_ring_under_a_rehearsed_job_saves_time_and_has_no_race(tmp_path: Path) -> None:
    flat = rehearsed(tmp_path / "flat", sharding="GGG", rings="flat")
    ho = rehearsed(tmp_path / "ho", sharding="GGG", rings="ho-ring")
    assert not flat.races
    assert not ho.races
    assert ho.step_s < 0.75 * flat.step_s


def test_a_model_whose_weights_are_nowhere_is_built_unit_by_unit(tmp_path: Path) -> None:
    """No moment of the run holds more than one unit as a whole, beside what the rank keeps."""
    found = rehearsed(tmp_path, sharding="GGG", steps=1)
    start = next(phase for phase in found.memory.phases if phase.phase == "init")
    assert start.nbytes < 4 * found.parameters  # a whole model in fp32


@pytest.mark.parametrize("letters", ["IIG", "GGG"])
def test_gradient_checkpointing_computes_again_and_communicates_the_same(letters: str, tmp_path: Path) -> None:
    """A layer's parameters are gathered once for its backward pass, in which the forward pass is computed again."""
    size = {"sharding": letters, "micro_batch": 4, "sequence": 1024}
    kept, again = (rehearsed(tmp_path / str(on), checkpointing=on, **size) for on in (False, True))
    assert not again.races
    assert again.memory.kind_peaks["activations"] < 0.5 * kept.memory.kind_peaks["activations"]
    assert again.traffic == kept.traffic
    layers = 3 * kept.forward_flops
    assert again.forward_flops == kept.forward_flops
    assert 1.1 * layers < again.flops < 1.34 * layers
