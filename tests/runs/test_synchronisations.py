"""Where the synchronisation could stand: which places are enough, found out by running them; and stock's own sites."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from streamrace.frameworks.deepspeed import adapter
from streamrace.frameworks.deepspeed.fixes import CURES, STOCK, Fix, Where
from streamrace.frameworks.deepspeed.training import DeepSpeedTrainer
from streamrace.reports.data.findings import Findings, Verdict
from streamrace.scenarios.scenario import scenario
from streamrace.studies import sites
from streamrace.studies.sites import Site

Run = Callable[..., Findings]
Live = Callable[[Site | None], sites.SiteOutcome]

TIMINGS: dict[str, dict[str, Any]] = {
    "the scenario's": {},
    "slow compute": {"stands_for": "itself", "slow": {"stream:compute": 300}},
}
ELSEWHERE = [fix for fix in CURES if fix.where is not Where.COPY]  # after each copy: tests/runs/test_race.py


@pytest.mark.parametrize("timing", [pytest.param("the scenario's", marks=pytest.mark.wide), "slow compute"])
@pytest.mark.parametrize("fix", ELSEWHERE)
def test_a_cure_at_the_fetch_leaves_no_race_and_every_bit_right(run: Run, fix: Fix, timing: str) -> None:
    found = run(fix=fix, steps=2, accumulation=1, ranks=2, nodes=1, **TIMINGS[timing])
    assert found.verdict is Verdict.CLEAN, [race.missing_wait for race in found.races]


def test_a_synchronisation_at_the_turn_comes_too_late(run: Run) -> None:
    """The forward pass already prefetches what backward reads first, from secondaries that it copied itself."""
    found = run(fix=Fix.TURN_SYNC, steps=2, accumulation=1, ranks=2, nodes=1)
    assert found.verdict is Verdict.UNSTABLE
    moments = [(one.first.phase, one.second.phase) for race in found.races for one in race.examples]
    assert set(moments) == {("forward", "forward")}
    assert {frame.function.rpartition(".")[2] for race in found.races for frame in race.second.stack} >= {
        "_fetch_sub_module_impl"
    }


def test_an_event_for_each_module_misses_what_is_copied_outside_of_modules(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The end of ``GatheredParameters`` copies, and the next forward pass prefetches before a module is released."""

    def edit(trainer: DeepSpeedTrainer, probe: Any) -> None:
        parameter = trainer.engine.module.get_parameter("model.layers.0.self_attn.q_proj.weight")
        with adapter.deepspeed.zero.GatheredParameters(parameter, modifier_rank=0), torch.no_grad():
            if torch.distributed.get_rank() == 0:
                parameter.mul_(2)

    monkeypatch.setattr(DeepSpeedTrainer, "edit", edit)  # the ranks are forked
    found = run(fix=Fix.MODULE_EVENT, steps=2, edit_after=1, ranks=2, nodes=1)
    assert found.verdict is Verdict.UNSTABLE
    moments = [(one.first.phase, one.second.phase) for race in found.races for one in race.examples]
    assert set(moments) == {("edit", "forward")}  # what training itself copies is ordered


def test_a_fix_that_is_not_enough_is_no_cure() -> None:
    assert set(Fix) - set(CURES) == {Fix.NONE, Fix.TURN_SYNC, Fix.TURN_EVENT, Fix.MODULE_EVENT}


def test_the_line_that_is_said_to_be_taken_away_is_the_one_that_stands_there() -> None:
    place, function, line = STOCK.split(" ", 2)
    file, _, number = place.partition(":")
    lines = (Path(adapter.deepspeed.__file__).parent.parent / file).read_text(encoding="utf-8").splitlines()
    assert lines[int(number) - 1].strip() == line
    before = [one.strip() for one in lines[: int(number)] if one.lstrip().startswith("def ")]
    assert before[-1].startswith(f"def {function.removeprefix('Init.').removesuffix(':')}(")


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Live:
    """``live(site)`` runs the small scenario without one synchronisation."""
    made = scenario(**{**sites.SCENARIO, "steps": 2})
    folder = tmp_path_factory.mktemp("sites")
    expected = sites.reference(made, folder / "reference")
    known: dict[Site | None, sites.SiteOutcome] = {}

    def call(site: Site | None) -> sites.SiteOutcome:
        if site not in known:
            known[site] = sites.live(made, folder / f"run{len(known)}", expected, site)
        return known[site]

    return call


def test_the_sites_of_a_run_are_those_of_the_source(live: Live) -> None:
    """Each is a line of DeepSpeed that says what it was taken for."""
    found = live(None)
    assert not found.races
    assert not found.diverged
    root = Path(adapter.deepspeed.__file__).parent.parent
    words = {
        "stream.synchronize": ".synchronize()",
        "stream.wait_stream": ".wait_stream(",
        "event.synchronize": ".sync",
    }
    for site in found.sites:
        line = (root / site.file).read_text(encoding="utf-8").splitlines()[site.line - 1]
        assert words.get(site.operation, "") in line, site
    assert {site.operation for site in found.sites} >= {
        "stream.synchronize",
        "stream.wait_stream",
        "device.synchronize",
        "work.wait",
    }


def test_stock_without_its_temporary_fix_diverges_so_that_one_carries_load(live: Live) -> None:
    site = next(site for site in live(None).sites if site.function.endswith("_partition_param_sec"))
    found = live(site)
    assert sites.verdict(found) == sites.CARRIES
    assert site not in found.sites


def test_not_every_synchronisation_of_stock_is_needed(live: Live) -> None:
    """The wait for the gather of persistent parameters: a device synchronisation stands a few lines behind it.

    (That one carries load, for something else: it orders the optimizer's copies before the next forward pass.
    ``tests/runs/test_race.py`` has what happens where there are no persistent parameters.)
    """
    gather = {
        site.operation: site for site in live(None).sites if site.function.endswith("_allgather_params_coalesced")
    }
    found = live(gather["work.wait"])
    assert sites.verdict(found) == sites.REDUNDANT
    assert gather["work.wait"] not in found.sites
