"""Emitted tests of the catalogue's races: they fail with the affected release and pass with the fixed one."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from streamrace.detectors.places import between
from streamrace.device.packages import environment_of
from streamrace.process.lifetime import BY_ITSELF
from streamrace.reports.data import loading
from streamrace.scenarios.catalogue.entry import entries, named
from tests.warm import ROOT

WIDE = ["ds5059", "ds5606", "ds6993", "ds7898", "ds7965", "pt160291", "tr2598", "tr4497", "trl7195"]
CASES = [
    pytest.param("mg5222", 2, False),
    pytest.param("trl7195-clone", 6, False),
    *(pytest.param(one, 200, False, marks=pytest.mark.wide) for one in WIDE),
    pytest.param("ds8061", 200, True, marks=pytest.mark.wide),  # which is there without overlap_comm in all releases
]


@pytest.mark.release
@pytest.mark.timeout(1200)
@pytest.mark.parametrize(("name", "trials", "fixed"), CASES)
def test_it_fails_with_the_release_that_has_the_race_and_passes_with_the_one_that_does_not(
    name: str, trials: int, fixed: bool, tmp_path: Path
) -> None:
    (entry,) = named([name], entries())
    packages = [word for one in entry.affected.packages for word in ("--package", one)]
    run = ["--runs", str(tmp_path), "--name", "it", "--witnesses", "0", "--ranks", str(entry.ranks)]
    checked = repro("check", *run, *packages, str(entry.path), *entry.affected.arguments)
    assert checked.returncode == 1, checked.stdout + checked.stderr
    races = loading.load(tmp_path / "it").file.races
    number = next(at for at, race in enumerate(races, 1) if between(race, entry.places))
    file = tmp_path / "outside" / "test_it.py"
    file.parent.mkdir()
    words = [str(tmp_path / "it"), str(number), "--output", str(file), "--trials", str(trials)]
    words += [word for one in entry.fixed.packages if fixed for word in ("--fixed", one)]
    emitted = repro("emit-test", *words)
    assert emitted.returncode == 0, emitted.stdout + emitted.stderr
    affected = outside(file, entry.affected.packages)
    assert affected.returncode == 1 and "stream race: the " in affected.stdout, affected.stdout + affected.stderr
    passes = outside(file, entry.fixed.packages)
    assert passes.returncode == 0, passes.stdout + passes.stderr


def repro(*words: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != "DS_ACCELERATOR"} | BY_ITSELF
    return subprocess.run(
        [sys.executable, "-m", "streamrace", *words], cwd=ROOT, env=environment, capture_output=True, text=True
    )


def outside(file: Path, packages: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """Outside the checkout, which is only installed."""
    environment = environment_of(packages)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", str(file.parent), str(file)]
    return subprocess.run(command, cwd=file.parent, env=environment, capture_output=True, text=True)
