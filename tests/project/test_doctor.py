"""``streamrace doctor`` says what is here and what is missing, in an environment that is made for each test."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import venv
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path

import numpy
import pytest

from tests.warm import ROOT

VERSION = metadata.version("torch")
_TORCH = "raise SystemExit('the doctor imported torch')\n"


class Patient:
    """An environment that has this project and numpy, and of torch what a test puts there."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        venv.create(folder / "env", with_pip=False, symlinks=True)
        python = f"python{sys.version_info.major}.{sys.version_info.minor}"
        self.packages = folder / "env" / "lib" / python / "site-packages"
        installed = Path(numpy.__file__).parents[1]
        for part in ("numpy", *(one.name for one in installed.glob("numpy*-*.dist-info"))):
            (self.packages / part).symlink_to(installed / part)
        (self.packages / "project.pth").write_text(f"{ROOT}\n")
        whole = metadata.distribution("streamrace").read_text("METADATA")
        assert whole is not None
        self._has("streamrace-0.1.0", whole)

    def _has(self, name: str, text: str) -> None:
        (self.packages / f"{name}.dist-info").mkdir()
        (self.packages / f"{name}.dist-info" / "METADATA").write_text(text)

    def has_torch(self, version: str, *, cuda: bool = False) -> None:
        (self.packages / "torch" / "lib").mkdir(parents=True)
        (self.packages / "torch" / "__init__.py").write_text(_TORCH)
        if cuda:
            (self.packages / "torch" / "lib" / "libtorch_cuda.so").touch()
        self._has(f"torch-{version}", f"Metadata-Version: 2.1\nName: torch\nVersion: {version}\n")

    def asked(self, *words: str, **more: str) -> subprocess.CompletedProcess[str]:
        clean = {"PATH": os.environ["PATH"], "COLUMNS": "400", "PYTHONUTF8": "1", "HOME": str(self.folder)}
        return subprocess.run(
            [str(self.folder / "env" / "bin" / "python"), "-m", "streamrace", "doctor", *words],
            cwd=self.folder, env=clean | more, capture_output=True, text=True, timeout=100,
        )  # fmt: skip


@pytest.fixture
def patient(tmp_path: Path) -> Patient:
    return Patient(tmp_path)


def said(done: subprocess.CompletedProcess[str]) -> Mapping[str, str]:
    """What stands behind each name, with its mark, and the line below it where that says what helps."""
    found: dict[str, str] = {}
    name = ""
    for line in done.stdout.splitlines():
        if line.startswith(" " * 10):
            found[name] += f" {line.strip()}"
        elif line[:2].endswith(" "):
            name = line[2:17].strip()
            found[name] = f"{line[0]} {line[17:]}"
    assert done.stderr == ""
    return found


def test_with_numpy_alone_it_says_what_is_missing_and_what_brings_it(patient: Patient) -> None:
    done = patient.asked()
    told = said(done)
    assert done.returncode == 1
    assert told["torch"] == f"✗ not installed -> pip install --editable '{ROOT}[watch]'"
    assert told["DeepSpeed"].startswith("- not installed: 'run', 'fuzz', 'dry' and the studies need it -> pip install")
    assert told["Python"].startswith(f"✓ {sys.version.split()[0]} ")
    assert done.stdout.endswith("\nThe simulated GPU cannot run here: 1 thing to mend (✗).\n")


def test_a_cpu_build_of_torch_is_enough_and_is_never_imported(patient: Patient) -> None:
    patient.has_torch(VERSION)
    done = patient.asked()
    told = said(done)
    assert done.returncode == 0, done.stdout
    assert told["torch"].startswith(f"✓ {VERSION}, a CPU build")
    assert told["simulated GPU"][0] in "✓-" and told["extras"] == "✓ watch: installed"
    assert told["extra"].startswith("- 'ray' lacks ")
    assert "! extra          'reports' lacks bokeh, click, jinja2, markupsafe and " in done.stdout
    assert "\nThe simulated GPU can run here; see the 1 marked with !.\nNext: " in done.stdout
    assert done.stdout.endswith("streamrace demo\n")


def test_for_a_cuda_build_it_says_which_cpu_build_runs_instead(patient: Patient) -> None:
    patient.has_torch("2.13.0+cu126", cuda=True)
    kept = patient.folder / "cache"
    before = patient.asked(STREAMRACE_CACHE=str(kept))
    assert before.returncode == 0, before.stdout
    assert f"a CUDA build: the first command makes a CPU build of torch 2.13.0 in {kept}, once" in said(before)["torch"]

    place = kept / "torch" / f"2.13.0-cpython-{sys.version_info.major}{sys.version_info.minor}-x86_64-linux-gnu"
    place.mkdir(parents=True)
    after = patient.asked(STREAMRACE_CACHE=str(kept))
    assert f"a CUDA build: its CPU build is used instead, which is in the cache ({place})" in said(after)["torch"]


def test_without_a_compiler_nothing_that_is_not_built_can_run(patient: Patient) -> None:
    patient.has_torch("0.0.1")
    done = patient.asked(PATH=str(patient.folder))
    told = said(done)
    assert done.returncode == 1
    assert told["simulated GPU"].startswith("✗ not built yet, and there is no C++ compiler for it -> install a C++")
    assert told["compiler"].startswith("! there is no C++ compiler") and told["binutils"].startswith("- there is no nm")


def test_a_folder_that_cannot_be_written_is_told_before_a_command_fails_there(patient: Patient) -> None:
    patient.has_torch(VERSION)
    (patient.folder / "file").touch()
    place = patient.folder / "file" / "cache"
    done = patient.asked(STREAMRACE_CACHE=str(place))
    assert done.returncode == 1
    assert said(done)["cache"].startswith(f"✗ {place} cannot be written -> 'streamrace cache clear' makes room; ")


def test_a_script_reads_the_same_as_json(patient: Patient) -> None:
    done = patient.asked("--format", "json")
    found = json.loads(done.stdout)
    assert (done.returncode, found["version"], found["runs"]) == (1, 1, False)
    assert {"name": "torch", "tone": "bad", "says": "not installed",
            "fix": f"pip install --editable '{ROOT}[watch]'"} in found["items"]  # fmt: skip


def test_marks_are_plain_where_the_terminal_has_no_others(patient: Patient) -> None:
    done = patient.asked(PYTHONUTF8="0", PYTHONIOENCODING="ascii")
    assert done.stdout.isascii() and "x torch" in done.stdout


def test_lines_are_as_wide_as_the_terminal_and_commands_are_never_wrapped(patient: Patient) -> None:
    lines = patient.asked(COLUMNS="60").stdout.splitlines()
    assert all(len(line) <= 60 or "->" in line or "/" in line for line in lines)
    assert f"-> pip install --editable '{ROOT}[watch]'" in "\n".join(lines)


def test_a_mistake_is_one_sentence(patient: Patient) -> None:
    done = patient.asked("--fromat", "json")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.splitlines()[-1] == "Error: No such option '--fromat' (did you mean '--format'?)."
