"""One name in everybody's environment: a user's own modules, whatever they are called, are the user's."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.packages import LINKED, ROOT
from tests.warm import shell

FORMER = ("repro", "reports", "studies", "scenarios", "frameworks", "fuzz", "replay", "metrics", "detectors", "simgpu")
COMMAND = str(Path(sys.executable).with_name("streamrace"))

# types: of the standard library, and imported before any script. Whoever imports the user's by mistake breaks.
SCRIPT = f"""
import json, sys, types
import conftest
{"; ".join(f"import {name}" for name in FORMER if name != "repro")}
import torch

assert types.SimpleNamespace
theirs = [one.__file__ for one in (conftest, {", ".join(name for name in FORMER if name != "repro")})]
print(json.dumps([sys.path, theirs, torch.cuda.is_available()]))
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A user's folder with a script of the name that bug reports have, beside modules of all our former names."""
    place = tmp_path / "user"
    place.mkdir()
    for name in (*FORMER, "conftest", "streams", "utils"):
        (place / f"{name}.py").write_text(f"NAME = {name!r}\n")
    (place / "types.py").write_text("raise ImportError('the standard library has types')\n")
    (place / "repro.py").write_text(SCRIPT)
    return place


def run(*words: str, folder: Path) -> list[object]:
    done = subprocess.run(words, cwd=folder, env=shell(), capture_output=True, text=True, timeout=100, check=False)
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("[")] or [done.stderr]
    told: list[object] = json.loads(line)
    return told


@pytest.mark.parametrize(
    "words",
    [
        (COMMAND, "check", "--witnesses", "0", "repro.py"),
        (COMMAND, "device", "repro.py"),
        (COMMAND, "watch", "--on-finding", "warn", "repro.py"),
        (sys.executable, "-m", "streamrace", "check", "--witnesses", "0", "repro.py"),
    ],
    ids=["check", "device", "watch", "python -m"],
)
def test_a_script_sees_its_own_modules_and_the_path_that_python_gives_it(words: tuple[str, ...], folder: Path) -> None:
    plain, theirs, _ = run(sys.executable, "repro.py", folder=folder)
    path, found, gpu = run(*words, folder=folder)
    assert found == theirs == [str(folder / f"{name}.py") for name in ("conftest", *FORMER[1:])]
    assert path == plain
    assert gpu is ("watch" not in words)


def test_a_script_elsewhere_is_run_whatever_lies_in_the_working_folder(folder: Path, tmp_path: Path) -> None:
    """Not even a module of the standard library's name, as a process of ours would import it."""
    for name in ("random", "statistics", "queue"):
        (folder / f"{name}.py").write_text("raise ImportError('of the working folder')\n")
    script = tmp_path / "train.py"
    script.write_text("import random, sys, json; print(json.dumps([sys.path[0]]))\n")
    assert run(COMMAND, "check", str(script), folder=folder) == [str(tmp_path)]


def test_the_command_has_its_name_of_before() -> None:
    said = [
        subprocess.run([str(Path(COMMAND).with_name(name)), "--version"], capture_output=True, text=True, check=True)
        for name in ("streamrace", "repro")
    ]
    assert said[0].stdout == said[1].stdout and said[0].stdout.startswith("streamrace, version ")


@pytest.mark.parametrize("name", [name for name in LINKED if name != "repro"])
def test_a_folder_at_the_top_of_the_checkout_cannot_be_imported_a_second_time(name: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", f"import {name}"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    last = done.stderr.splitlines()[-1]
    assert last == f"ImportError: import streamrace.{name}: the folder {name} of the checkout is a part of that package"


def test_nothing_of_ours_is_imported_by_another_name() -> None:
    """Whatever a test has imported by now."""
    assert not {name.partition(".")[0] for name in sys.modules} & {*FORMER}


def test_what_a_program_imports_is_in_the_package_itself() -> None:
    import streamrace

    assert all(getattr(streamrace, name).__name__ == name for name in streamrace.__all__)
    with pytest.raises(AttributeError, match="module 'streamrace' has no attribute 'nothing'"):
        streamrace.nothing  # noqa: B018
