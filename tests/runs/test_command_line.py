"""The commands a user types, and what they leave behind."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pandas as pd
import pytest

from streamrace.device.hardware import profile_names
from streamrace.frameworks.deepspeed.fixes import Fix
from streamrace.frameworks.deepspeed.releases import KNOWN
from streamrace.repro.__main__ import main
from streamrace.repro.commands.options import SECTIONS
from streamrace.scenarios.job import Job
from streamrace.scenarios.models import FULL_SIZE
from streamrace.scenarios.registry import NAMED
from streamrace.scenarios.scenario import Scenario, load
from streamrace.scenarios.sharding.strategy import legal
from streamrace.trace.files import TraceReader
from tests.warm import Here


def test_unstable_shows_the_instability(tmp_path: Path) -> None:
    done = Here().run(
        "-m",
        "repro",
        "run",
        "--fix",
        "none",
        "--expect",
        "unstable",
        "--name",
        "it",
        "--runs",
        str(tmp_path),
        "--steps",
        "3",
        "--size",
        "tiny",
        "--ranks",
        "2",
        "--nodes",
        "1",
    )
    assert done.returncode == 0, done.stderr
    assert "verdict: unstable" in done.stdout
    assert "_partition_param_sec" in done.stdout
    assert "First wrong parameter" in done.stdout
    assert "Race 1 shows in the timing as recorded:" in done.stdout

    folder = tmp_path / "it"
    findings = json.loads((folder / "findings.json").read_text())
    assert findings["verdict"] == "unstable"
    assert findings["races"][0]["first"]["stack"][0]["file"] == "deepspeed/runtime/zero/partition_parameters.py"
    assert findings["divergence"]["parameter"]["phase"] == "backward"
    metrics = pd.read_csv(folder / "metrics.csv")
    assert len(metrics) == 3 * 2 * 2
    assert not metrics["equal"].all()
    assert load(folder / "scenario.json").fix == "none"
    records = list(TraceReader(folder / "trace" / "rank0.trace").read())
    assert len(records) > 1000


def test_expectations_that_are_not_met(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = (
        "--size",
        "tiny",
        "--steps",
        "1",
        "--ranks",
        "2",
        "--nodes",
        "1",
        "--name",
        "it",
        "--runs",
        str(tmp_path),
    )
    with pytest.raises(SystemExit) as end:
        main(["run", *arguments, "--expect", "unstable"])
    assert end.value.code == 1
    assert "Expected unstable, found clean." in capsys.readouterr().out


def test_a_clean_verdict_says_by_which_chance_it_is_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Stock's second race, where nothing orders the two but the wait of DeepSpeed's timer, from the third step on."""
    small = ("--size", "tiny", "--steps", "4", "--accumulation", "1", "--ranks", "2", "--nodes", "1")
    main(["run", *small, "--persistence", "0", "--expect", "clean", "--name", "it", "--runs", str(tmp_path)])
    shown = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert "But only by chance" in shown
    assert "Held only by the timer's wait at deepspeed/utils/timer.py:238 ThroughputTimer.start. Without it:" in shown
    rests = json.loads((tmp_path / "it" / "findings.json").read_text())["rests"]
    assert {race["first"]["stack"][0]["line"] for held in rests["held"] for race in held["races"]} == {2858}
    main(["report", str(tmp_path / "it")])
    told = (tmp_path / "it" / "report" / "report.md").read_text()
    assert "held only by chance; without the timer's wait" in told
    assert "But part of what orders it are waits that are there for another reason." in " ".join(told.split())


@pytest.mark.wide
def test_an_edit_without_hpz_is_clean_by_the_throughput_timer_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It waits from the third step on, and the edit is after the second."""
    small = ("--size", "tiny", "--steps", "4", "--runs", str(tmp_path))
    main(["run", "--hpz", "1", "--edit-after", "2", *small, "--expect", "clean", "--name", "it"])
    shown = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert "Clean: no race, and every value equals the reference bit for bit. But only by chance" in shown
    assert "Held only by the timer's wait at deepspeed/utils/timer.py:238 ThroughputTimer.start. Without it:" in shown


@pytest.mark.wide
def test_a_run_in_which_hpz_never_ran_says_so_first(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    small = ("--size", "tiny", "--steps", "2", "--ranks", "2", "--nodes", "1", "--runs", str(tmp_path))
    main(["run", *small, "--persistence", "100000000", "--expect", "clean", "--name", "it"])
    shown = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert "Clean for the part that ran: no race, and every value equals the reference bit for bit" in shown
    assert "hpZ is on, and no secondary partition that training wrote was ever read" in shown


def test_compare_sets_fixes_side_by_side(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    short = ("--steps", "2", "--accumulation", "1", "--size", "tiny", "--ranks", "2", "--nodes", "1")
    main(["compare", "--fixes", "none,event", *short, "--runs", str(tmp_path)])
    shown = capsys.readouterr().out
    assert "side by side" in shown
    assert f"Report: {tmp_path / 'compare' / 'report' / 'index.html'}" in " ".join(shown.split())
    assert (tmp_path / "compare" / "report" / "index.html").is_file()
    for fix in ("none", "event"):
        assert json.loads((tmp_path / f"compare-{fix}" / "findings.json").read_text())["scenario"]["fix"] == fix


@pytest.mark.parametrize("command", ["run", "compare"])
def test_help_explains_every_option(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    main([command, "--help"])
    shown = capsys.readouterr().out
    for name in Scenario.model_fields:
        assert f"--{name.replace('_', '-')}" in shown


def test_each_field_stands_under_one_heading_of_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    placed = [name for names in SECTIONS.values() for name in names]
    assert sorted(placed) == sorted({*Scenario.model_fields, *Job.model_fields})
    main(["dry", "--help"])
    shown = capsys.readouterr().out
    headings = [line for line in shown.splitlines() if line.endswith(":") and not line.startswith(" ")]
    assert headings == ["Options:", *(f"{section}:" for section in SECTIONS)]
    assert shown.index("Cluster and timing:") < shown.index("--network") and "--one-rank" in shown


def test_compare_takes_its_fixes_by_one_option_alone(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["compare", "--fix", "none"])
    assert end.value.code == 2
    assert "No such option '--fix'. Did you mean '--fixes'?" in capsys.readouterr().err


def test_the_names_that_options_take_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    main(["list"])
    shown = capsys.readouterr().out
    for name in (*FULL_SIZE, *profile_names(), *NAMED, *Fix, *KNOWN, *map(str, legal())):
        assert re.search(rf"^{re.escape(name)}\b", shown, re.MULTILINE), name
    main(["list", "profiles"])
    assert capsys.readouterr().out.splitlines()[0].startswith("profiles")
    with pytest.raises(SystemExit) as end:
        main(["list", "planets"])
    assert end.value.code == 2
    assert "choose one of models, profiles, scenarios" in capsys.readouterr().err


def test_help_lists_the_commands(capsys: pytest.CaptureFixture[str]) -> None:
    main(["--help"])
    shown = capsys.readouterr().out
    assert "run" in shown
    assert "compare" in shown
