"""The releases that people ran, unmodified: race, stale, uncovered and clean are told apart.

Each needs an environment of its own, built once in the user's cache (half a minute); where the registry
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

from streamrace.device.packages import folder_of_releases
from streamrace.device.packages.names import PackageError
from streamrace.frameworks.deepspeed.releases import PINNED, environment
from streamrace.repro.commands.releases import row_of
from streamrace.studies import trainer

ROOT = Path(__file__).resolve().parents[2]
SCENARIO = ("--size", "tiny", "--steps", "3", "--watch", "on")  # the live watch says the same, from inside


def under(release: str) -> dict[str, str]:
    try:
        return environment(release)
    except PackageError as error:
        pytest.skip(f"the package registry does not give DeepSpeed {release}: {error}")


def findings(release: str, folder: Path, *arguments: str) -> dict[str, Any]:
    """Run the scenario under the release."""
    own = under(release)
    command = [sys.executable, "-m", "streamrace", "run", "--deepspeed", release, "--runs", str(folder), "--name", "it"]
    done = subprocess.run(
        [*command, *SCENARIO, *arguments], cwd=ROOT, env=own, capture_output=True, text=True, timeout=250
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

    command = [sys.executable, "-m", "streamrace", "run", "--fix", "none", "--runs", str(tmp_path), "--name", "pinned"]
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
    affected = trainer.losses("0.13.4", under("0.13.4"), steps=3)
    pinned = trainer.losses(PINNED, os.environ, steps=3)
    assert affected.loss[2] == 0.0 and affected.gradient_norm.isna().tolist() == [False, True, True]
    assert affected.loss[:2].tolist() == pytest.approx(pinned.loss[:2].tolist(), rel=1e-3)
    assert pinned.loss[2] > 1 and pinned.gradient_norm.notna().all()


@pytest.mark.release
def test_why_sets_0_13_4_beside_the_pinned_release(tmp_path: Path) -> None:
    """At full size: on a slow network the affected release reverses pairs of one layer, and the pinned one none."""
    under("0.13.4")
    command = [sys.executable, "-m", "streamrace", "why", "--releases", f"0.13.4,{PINNED}", "--runs", str(tmp_path)]
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
    monkeypatch.setenv("STREAMRACE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    row = row_of("0.13.4", tmp_path / "runs" / "it", [])
    assert row["failure"].startswith("deepspeed 0.13.4 cannot be installed: ")
    assert not list(folder_of_releases().iterdir()) and not (tmp_path / ".releases").exists()


@pytest.mark.release
def test_the_short_build_gives_the_files_of_pips_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All but one step of the build go without torch. Nothing of it may be seen in what is installed."""
    monkeypatch.setenv("PIP_NO_CACHE_DIR", "1")
    environment("0.13.5", tmp_path)
    command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-build-isolation", "--target"]
    own = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "DS_ACCELERATOR")}
    subprocess.run(
        [*command, str(tmp_path / "own"), "deepspeed==0.13.5"], check=True, env=own | {"PYTHONHASHSEED": "0"}
    )

    def files(place: Path) -> dict[str, bytes]:
        there = (path for path in place.rglob("*") if path.is_file() and path.suffix != ".pyc")
        return {str(path.relative_to(place)): path.read_bytes() for path in there if path.name != "RECORD"}

    made, plain = files(tmp_path / "deepspeed-0.13.5"), files(tmp_path / "own")
    assert len(made) > 400 and made == plain


@pytest.mark.release
def test_the_release_that_cured_hpz_is_found_by_halving(tmp_path: Path) -> None:
    program = "scenarios/catalogue/deepspeed/ds5059.py"
    words = ["--package", "deepspeed", "--from", "0.13.2", "--to", "0.14.0", "--runs", str(tmp_path / "runs")]
    command = [sys.executable, "-m", "streamrace", "bisect", *words, "--name", "it", "--ranks", "2", program]
    own = {name: value for name, value in os.environ.items() if name != "DS_ACCELERATOR"}
    done = subprocess.run(command, cwd=ROOT, env=own, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads((tmp_path / "runs" / "it" / "bisect.json").read_text())
    assert (found["before"], found["first"], len(found["tried"])) == ("0.13.4", "0.13.5", 4)
    assert found["new"] == []
    file = "partition_parameters.py"
    assert found["gone"] == [f"write-read of {file}:_partition_param_sec and {file}:_dist_allgather_fn"]
