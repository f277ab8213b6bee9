"""A release is installed once, whole or not at all, with what it asks for beside it; what is wrong is a sentence."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from streamrace.device.packages import VARIABLE, environment_of, installing, names
from streamrace.device.packages import index as of_index
from streamrace.device.packages.names import Package, PackageError
from tests.releases.conftest import wheel

_PIP = subprocess.CompletedProcess[str]


@pytest.mark.parametrize(
    ("texts", "sentence"),
    [
        (["deepspeed"], "--package deepspeed says no version: write, for example, deepspeed==1.2.3"),
        (["deepspeed=="], "--package deepspeed says no version: write, for example, deepspeed==1.2.3"),
        (["deepspeed==new"], "--package deepspeed==new: 'new' is no version (one release, as 1.2.3)"),
        (["deepspeed==0.13.*"], "--package deepspeed==0.13.*: '0.13.*' is no version (one release, as 1.2.3)"),
        (["../x==1"], "--package takes NAME==VERSION, for example deepspeed==0.13.4, not '../x==1'"),
        (["-e==."], "--package takes NAME==VERSION, for example deepspeed==0.13.4, not '-e==.'"),
        (["x[all]==1"], "--package takes NAME==VERSION, for example deepspeed==0.13.4, not 'x[all]==1'"),
        (
            ["x @ https://a.b/c"],
            "--package takes NAME==VERSION, for example deepspeed==0.13.4, not 'x @ https://a.b/c'",
        ),
        (["x==1/../../y"], "--package x==1/../../y: '1/../../y' is no version (one release, as 1.2.3)"),
        (["x==1", "X==2"], "--package names two versions of x, 1 and 2: say one"),
    ],
)
def test_what_names_no_one_release_is_refused(texts: list[str], sentence: str) -> None:
    with pytest.raises(PackageError) as error:
        names.several(texts)
    assert str(error.value) == sentence


def test_a_release_is_named_in_one_spelling() -> None:
    assert names.several(["Deep_Speed==0.13.04", "deep.speed == 0.13.4"]) == (Package("deep-speed", "0.13.4"),)
    assert Package("torch", "2.13.0").is_("2.13.0+cpu") and not Package("torch", "2.13.0").is_("2.13.1")


def test_a_release_and_what_it_asks_for_stand_in_front_of_the_import_path(index: Path, tmp_path: Path) -> None:
    asks = ["leaf>=1,<3", "pytest<1", "torch<1", "nvidia-none", "nowhere", "unused; extra == 'all'"]
    wheel(index, "stem", "1.0", "import leaf\nVERSION = leaf.VERSION\n", asks)
    for version in ("0.9", "2.0", "3.0"):
        wheel(index, "leaf", version)
    told: list[str] = []
    environment = environment_of(["stem==1.0"], tmp_path / "made", tell=told.append)
    places = [str(tmp_path / "made" / name) for name in ("stem-1.0", "leaf-2.0")]
    assert environment["PYTHONPATH"].split(os.pathsep)[:2] == places == environment[VARIABLE].split(os.pathsep)
    done = subprocess.run(
        [sys.executable, "-c", "import stem; print(stem.VERSION)"], env=environment, capture_output=True, text=True
    )
    assert done.stdout == "2.0\n"
    assert told[0] == f"stem 1.0: installing into {tmp_path / 'made'}/, once"
    assert told[1] == "stem 1.0: installed, 0.0 MB"
    assert "stem 1.0 asks for leaf<3,>=1, which is not here: leaf 2.0 beside it" in told
    assert any(
        one.startswith("stem 1.0 asks for pytest<1, and ") and one.endswith(" is installed: it stays") for one in told
    )
    assert any(one.startswith("stem 1.0 asks for nowhere, which is not here (nowhere cannot be ") for one in told)
    assert len(told) == 5
    assert sorted(path.name for path in (tmp_path / "made").iterdir()) == ["leaf-2.0", "stem-1.0"]
    assert [*(tmp_path / "made" / "stem-1.0" / "__pycache__").iterdir()], "byte-compiled"

    wheel(index, "leaf", "2.5")  # comes out later: the same command goes on with what it had
    assert environment_of(["stem==1.0"], tmp_path / "made")["PYTHONPATH"] == environment["PYTHONPATH"]


def test_the_module_of_a_given_package_of_another_name_is_taken(index: Path, tmp_path: Path) -> None:
    wheel(index, "stem", "1.0", requires=["leaf_gpu"])
    wheel(index, "leaf_gpu", "2.0")
    wheel(index, "leaf_gpu_cpu", "1.0", module="leaf_gpu")
    told: list[str] = []
    environment_of(["stem==1.0", "leaf-gpu-cpu==1.0"], tmp_path / "made", tell=told.append)
    assert sorted(path.name for path in (tmp_path / "made").iterdir()) == ["leaf-gpu-cpu-1.0", "stem-1.0"]
    assert told[-1] == "stem 1.0 asks for leaf-gpu: leaf-gpu-cpu 1.0 provides it"


def test_an_unknown_release_is_told_with_its_neighbours(index: Path, tmp_path: Path) -> None:
    for version in ("1.0", "1.2", "2.0rc1"):
        wheel(index, "stem", version)
    sentences = {
        "stem==1.1": "stem 1.1 cannot be installed: this release does not exist; the nearest are 1.0 and 1.2",
        "stem==9": "stem 9 cannot be installed: this release does not exist; the nearest is 1.2",
        "steam==1": "steam 1 cannot be installed: the package index has no steam",
    }
    for text, sentence in sentences.items():
        with pytest.raises(PackageError) as error:
            environment_of([text], tmp_path / "made")
        assert str(error.value) == sentence
    assert not [*(tmp_path / "made").iterdir()], "nothing half stays"
    assert of_index.releases("stem") == ["1.0", "1.2"]


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ("WARNING: Retrying (Retry(total=0)) after connection broken by 'NewConnectionError'\n"
         "ERROR: No matching distribution found for x==1", "the package index cannot be reached"),
        ("ERROR: Ignored the following versions that require a different python version: 1 Requires-Python >=3.12\n"
         "ERROR: Could not find a version that satisfies the requirement x==1 (from versions: none)\n",
         "it needs another Python (>=3.12)"),
        ("  error: subprocess-exited-with-error\n      AttributeError: 'X' object has no attribute 'y'\n",
         "its build ends with AttributeError: 'X' object has no attribute 'y'"),
        ("/usr/bin/python: No module named pip", "this environment has no pip (python -m ensurepip)"),
        ("ERROR: no space", "ERROR: no space"),
        ("", "pip does not say why"),
    ],
)  # fmt: skip
def test_what_pip_says_becomes_the_end_of_a_sentence(said: str, reason: str) -> None:
    assert of_index.reason(said, Package("x", "1")) == reason


def test_a_folder_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(PackageError, match=r"^x 1 cannot be installed in .*/file/made: Not a directory$"):
        environment_of(["x==1"], tmp_path / "file" / "made")


def test_an_interrupted_installation_leaves_nothing_and_a_killed_one_no_more_than_the_next_removes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = tmp_path / ".x-1.abc.part"
    (left / "it").mkdir(parents=True)
    other = tmp_path / ".x-2.abc.part"  # somebody else's, who may be at it
    other.mkdir()

    def interrupted(words: list[str], **_: Any) -> _PIP:
        Path(words[words.index("--target") + 1]).mkdir()
        raise KeyboardInterrupt

    monkeypatch.setattr(of_index, "pip", interrupted)
    with pytest.raises(KeyboardInterrupt):
        environment_of(["x==1"], tmp_path)
    assert [*tmp_path.iterdir()] == [other]


def test_two_commands_at_once_make_it_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    waits, runs = threading.Event(), list[str]()

    def slow(words: list[str], **_: Any) -> _PIP:
        runs.append(words[-1])
        assert waits.wait(60)  # until the other has said that it waits
        info = Path(words[words.index("--target") + 1]) / "x-1.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: x\nVersion: 1\n")
        return subprocess.CompletedProcess(words, 0, "", "")

    def tell(sentence: str) -> None:
        told.append(sentence)
        if "waiting" in sentence:
            waits.set()

    told: list[str] = []
    monkeypatch.setattr(of_index, "pip", slow)
    made: list[Path] = []
    both = [
        threading.Thread(target=lambda: made.append(installing.make(Package("x", "1"), tmp_path, tell)))
        for _ in range(2)
    ]
    for one in both:
        one.start()
    for one in both:
        one.join()
    assert made == [tmp_path / "x-1"] * 2 and runs == ["x==1"]
    assert told.count("x-1: another command is installing it; waiting for that") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["x-1"]


def test_a_build_does_not_see_what_the_process_runs_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Old releases ask for Intel's package, in their build already, when they are told to use the CPU."""
    built: list[dict[str, str]] = []

    def build(command: list[str], *, env: dict[str, str], **_: Any) -> _PIP:
        built.append(env)
        return subprocess.CompletedProcess(command, 1, "", "subprocess-exited-with-error")

    monkeypatch.setenv("DS_ACCELERATOR", "cpu")
    monkeypatch.setenv("PYTHONPATH", "/elsewhere")
    monkeypatch.setattr(subprocess, "run", build)
    with pytest.raises(PackageError, match="does not build here"):
        environment_of(["deepspeed==0.13.4"], tmp_path)
    assert len(built) == 3, "as its build asks for torch or not, then as pip does, then without torch"
    for one in built:
        assert "DS_ACCELERATOR" not in one and one.get("PYTHONPATH", "").endswith(("", "hook"))
        assert "/elsewhere" not in one.get("PYTHONPATH", "")
