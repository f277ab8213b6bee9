"""The releases that people ran, unmodified: race, stale, uncovered and clean are told apart.

Each needs an environment of its own, built once under ``.releases`` (half a minute); where the registry
cannot be reached they are skipped.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from frameworks.deepspeed.releases import KNOWN, PINNED, ReleaseError, environment, install
from repro.commands.releases import row_of
from studies import trainer

ROOT = Path(__file__).resolve().parents[2]
SCENARIO = ("--size", "tiny", "--steps", "3", "--watch", "on")  # the live watch says the same, from inside


def place_of(release: str) -> Path:
    try:
        return install(release, ROOT / ".releases")
    except ReleaseError as error:
        pytest.skip(f"the package registry does not give DeepSpeed {release}: {error}")


def findings(release: str, folder: Path, *arguments: str) -> dict[str, Any]:
    """Run the scenario under the release."""
    place = place_of(release)
    command = [sys.executable, "-m", "repro", "run", "--deepspeed", release, "--runs", str(folder), "--name", "it"]
    done = subprocess.run(
        [*command, *SCENARIO, *arguments], cwd=ROOT, env=environment(place), capture_output=True, text=True, timeout=250
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads((folder / "it" / "findings.json").read_text())
    assert found["versions"]["deepspeed"] == release
    return found


def first_functions(found: dict[str, Any]) -> set[str]:
    return {race["first"]["stack"][0]["function"] for race in found["races"]}


@pytest.mark.release
def test_0_13_4_races_and_diverges_at_the_same_pair_as_the_toggled_pinned_release(tmp_path: Path) -> None:
    found = findings("0.13.4", tmp_path)
    assert found["verdict"] == "unstable"
    assert found["causes"] == ["race"]
    assert first_functions(found) == {"Init._partition_param_sec"}
    assert (found["watch"]["cause"], found["watch"]["kind"]) == ("race", "secondary partition")

    command = [sys.executable, "-m", "repro", "run", "--fix", "none", "--runs", str(tmp_path), "--name", "pinned"]
    subprocess.run([*command, *SCENARIO], cwd=ROOT, check=True, capture_output=True, timeout=250)
    pinned = json.loads((tmp_path / "pinned" / "findings.json").read_text())

    def pair(race: dict[str, Any]) -> tuple[str, ...]:
        return tuple(race[side][what] for side in ("first", "second") for what in ("kernel", "access", "stream"))

    assert {pair(race) for race in pinned["races"]} == {pair(race) for race in found["races"]}
    assert first_functions(pinned) == first_functions(found)


@pytest.mark.release
def test_0_13_5_is_clean_and_computes_what_plain_gloo_does(tmp_path: Path) -> None:
    found = findings("0.13.5", tmp_path)
    assert found["verdict"] == "clean"
    assert not found["diverged"]
    assert found["watch"] is None
    assert found["divergence"]["compared"] > 100


@pytest.mark.release
def test_0_12_6_is_stale_and_does_not_race(tmp_path: Path) -> None:
    found = findings("0.12.6", tmp_path)
    assert found["verdict"] == "stale"
    assert found["races"] == []
    stale = found["stale"]
    assert (stale["phase"], stale["step"], stale["version"]) == ("backward", 2, 1)
    assert float(found["distance"]) > 0
    watch = found["watch"]
    assert (watch["cause"], watch["phase"], watch["step"], watch["version"]) == ("stale", "backward", 2, 1)


@pytest.mark.release
@pytest.mark.parametrize(("release", "verdict"), [("0.18.2", "stale"), ("0.18.3", "clean"), ("0.19.8", "clean")])
def test_an_edit_between_steps(tmp_path: Path, release: str, verdict: str) -> None:
    found = findings(release, tmp_path, "--edit-after", "1")
    assert found["verdict"] == verdict
    assert (found["watch"] or {}).get("cause") == (verdict if verdict == "stale" else None)
    if verdict == "stale":
        stale = found["stale"]
        assert (stale["phase"], stale["step"], stale["version"], stale["edited"]) == ("forward", 2, 1, True)


@pytest.mark.release
@pytest.mark.parametrize(
    ("release", "uncovered"), [("0.13.4", True), ("0.13.5", True), ("0.19.4", True), ("0.19.8", False)]
)
def test_padding(tmp_path: Path, release: str, uncovered: bool) -> None:
    found = findings(release, tmp_path, "--size", "odd")
    assert ("uncovered" in found["causes"]) == uncovered
    # In 0.13.4 the copy's bounds are wrong too, from DeepSpeed's start on: before there is anybody to watch.
    assert (found["watch"] or {}).get("cause") == ("race, stale or uncovered" if release == "0.13.4" else None)


@pytest.mark.release
def test_trainer_under_0_13_4_prints_two_losses_and_then_nothing_but_zero() -> None:
    """DeepSpeed issue 5059: 2.1364, 2.0157, 0.0."""
    affected = trainer.losses("0.13.4", environment(place_of("0.13.4")), steps=3)
    pinned = trainer.losses(PINNED, os.environ, steps=3)
    assert affected.loss[2] == 0.0 and affected.gradient_norm.isna().tolist() == [False, True, True]
    assert affected.loss[:2].tolist() == pytest.approx(pinned.loss[:2].tolist(), rel=1e-3)
    assert pinned.loss[2] > 1 and pinned.gradient_norm.notna().all()


@pytest.mark.release
def test_why_sets_0_13_4_beside_the_pinned_release(tmp_path: Path) -> None:
    """At full size: on a slow network the affected release reverses pairs of one layer, and the pinned one none."""
    place_of("0.13.4")
    command = [sys.executable, "-m", "repro", "why", "--releases", f"0.13.4,{PINNED}", "--runs", str(tmp_path)]
    more = ["--only", "another release's way", "--no-live"]
    subprocess.run([*command, *more], cwd=ROOT, check=True, capture_output=True, timeout=500)
    frame = pd.read_csv(tmp_path / "why" / "why.csv", keep_default_na=False, na_values={"slack_ms": [""]})
    setting = frame[frame.assumption == "the setting"].set_index("release")
    assert setting.verdict.to_dict() == {"0.13.4": True, PINNED: False}
    assert (setting.within_forward == setting.reversed).all() and setting.parameters["0.13.4"].startswith("layers.")
    count = frame[frame.value.str.startswith("live parameters counted")].set_index("release")
    assert count.verdict.to_dict() == {"0.13.4": False, PINNED: True}, "each as the other release"


def test_a_release_that_cannot_be_installed_is_a_row_that_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    row = row_of("0.13.4", tmp_path / "runs" / "it", [])
    assert row["failure"].startswith("DeepSpeed 0.13.4 cannot be installed: ")
    assert not list((tmp_path / ".releases").iterdir())


def test_a_release_is_built_without_the_accelerator_that_it_is_run_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Old releases ask for Intel's package, in their build already, when they are told to use the CPU."""
    built: list[dict[str, str]] = []

    def build(command: list[str], *, env: dict[str, str], **_: Any) -> subprocess.CompletedProcess[str]:
        built.append(env)
        return subprocess.CompletedProcess(command, 1, "", "ERROR: not built")

    monkeypatch.setenv("DS_ACCELERATOR", "cpu")
    monkeypatch.setattr(subprocess, "run", build)
    with pytest.raises(ReleaseError, match="not built"):
        install("0.13.4", tmp_path)
    assert "DS_ACCELERATOR" not in built[0]


def test_an_unknown_release_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ReleaseError, match=r"DeepSpeed 0\.1\.0 is not known to work here") as error:
        install("0.1.0", tmp_path)
    assert all(known in str(error.value) for known in KNOWN)
