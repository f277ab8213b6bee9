"""Our own engine in place of DeepSpeed: trained beside plain gloo, rehearsed, and refused in one sentence."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from streamrace import reports
from streamrace.metrics import BusyMetrics
from streamrace.reports.data.findings import Findings, Verdict
from streamrace.reports.pages.summary import fix
from streamrace.repro.__main__ import main
from streamrace.trace.files import TraceReader, file_of

Run = Callable[..., Findings]
Shared = Callable[..., tuple[Findings, Path]]
SHORT: dict[str, Any] = {"steps": 2, "accumulation": 2}
IIG: dict[str, Any] = {"sharding": "PaRO-IIG", "steps": 3, "accumulation": 2}


@pytest.mark.parametrize(
    "how",
    [IIG, {**SHORT, "sharding": "GGG", "rings": "ho-ring", "precision": "fp32", "frozen": ("*norm*",)}],
    ids=["IIG", "GGG by HO-Ring, norms frozen"],
)
def test_a_strategy_trains_llama_clean(shared_run: Shared, how: dict[str, Any]) -> None:
    """Every parameter at every use, every loss and the final state equal the same engine's on plain gloo."""
    found, _ = shared_run(**how)
    assert found.verdict is Verdict.CLEAN
    assert found.divergence.compared > 300
    assert found.host_blocked_ns_per_step == 0  # no wait of ours blocks the host


def test_a_step_lasts_as_long_as_its_work_though_the_host_never_waits(shared_run: Shared) -> None:
    """The host has issued all three steps before the first of them has run: its clock says nothing of their time."""
    found, folder = shared_run(**IIG)
    metric = BusyMetrics()
    metric.feed(TraceReader(file_of(folder / "trace", 0)).read())
    steps = metric.result().steps
    assert [step.step for step in steps] == [1, 2, 3]
    for step in steps:
        assert step.compute == pytest.approx(steps[0].compute, rel=0.01)  # each has its own work, and no other's
    assert steps[0].compute > 100_000_000
    assert found.virtual_ns_per_step == pytest.approx((steps[1].time + steps[2].time) / 2, rel=0.01)


def test_a_wait_that_is_taken_away_is_a_race_with_a_token(run: Run, tmp_path: Path) -> None:
    found = run(sharding="IIG", without=("gather-before-use",), folder=tmp_path / "broken", **SHORT)
    assert found.races
    assert {race.second.stream for race in found.races} == {"compute"}
    assert all(race.witness and "without=gather-before-use" in race.witness.token for race in found.races)
    assert fix(reports.load(tmp_path / "broken")) == "IIG without gather-before-use"  # what reports call it


def test_falcon_too(run: Run) -> None:
    assert run(sharding="IGG", model="falcon", steps=2, accumulation=1).verdict is Verdict.CLEAN


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (
            ["--sharding", "GIN"],
            "the strategy GIN is not legal: its optimizer state (N) is coarser than its parameters",
        ),
        (["--sharding", "ZeRO-4"], "there is no strategy 'ZeRO-4': give three of the letters N, I and G"),
        (["--sharding", "IIG", "--group", "3"], "groups of 3 do not divide 4 ranks: choose one of 1, 2, 4"),
        (["--sharding", "IIG", "--hpz", "2"], "--hpz is DeepSpeed's, and --sharding does without DeepSpeed"),
        (["--sharding", "IIG", "--fix", "none"], "--fix is DeepSpeed's"),
        (["--sharding", "IIG", "--without", "prayer"], "there is no synchronisation 'prayer': choose of update-before"),
        (["--sharding", "NIG", "--without", "use-before-gather"], "NIG has no synchronisation 'use-before-gather'"),
        (["--sharding", "IIG", "--without", "arrival-before-hop"], "IIG has no synchronisation 'arrival-before-hop'"),
        (["--group", "2"], "--group is of our own engine: name a strategy too"),
        (["--rings", "ho-ring"], "--rings is of our own engine"),
    ],
)
def test_what_does_not_fit_is_refused(options: list[str], sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["run", *options])
    assert end.value.code == 2
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("Error")]
    assert sentence in line


@pytest.mark.parametrize("options", [["--group", "3", "--sharding", "IIG"], ["--sharding", "IIG", "--stage", "2"]])
def test_a_dry_run_refuses_the_same(options: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["dry", *options])
    assert end.value.code == 2
    assert capsys.readouterr().err.startswith("Error: ")
