"""On any machine: from a clone to a verdict with the package index alone, whose torch is a CUDA build.

Marked ``index``, as it downloads torch's wheel and all that is pinned: ``make test-anywhere`` runs it, with Python 3.13
where none is named. No index and no folder that pip is configured for here is in reach.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.stories import Story

ROOT = Path(__file__).resolve().parents[2]
WANTED = "3.13"
_OURS = re.compile(r"PIP_|STREAMRACE_|PYTEST_|PYTHONPATH|VIRTUAL_ENV|MAKE|MFLAGS|DS_ACCELERATOR|HYPOTHESIS")
_KEPT = ("PIP_CERT", "PIP_DEFAULT_TIMEOUT", "PIP_INDEX_URL")  # how the index is reached

pytestmark = [pytest.mark.index, pytest.mark.timeout(1500)]


def _python() -> str:
    """``ANYWHERE_PYTHON``, or a Python of that version: in the path, of pyenv, of uv; empty where there is none."""
    if named := os.environ.get("ANYWHERE_PYTHON"):
        return named
    asked: tuple[list[str], ...] = ([f"python{WANTED}"], ["pyenv", "prefix", WANTED], ["uv", "python", "find", WANTED])
    for command in asked:
        if shutil.which(command[0]) is None:
            continue
        ask = [*command, "-c", "import sys; print(sys.executable)"] if len(command) == 1 else command
        done = subprocess.run(ask, capture_output=True, text=True, check=False)
        if done.returncode == 0:  # pyenv puts a python3.13 into the path that only says how to choose it
            found = Path(done.stdout.strip())
            return str(found / "bin" / "python" if found.is_dir() else found)
    root = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    return str(next(root.glob(f"versions/{WANTED}*/bin/python"), ""))


class Clone:
    """A clone of the checkout, as one makes it on a machine that has nothing of it."""

    def __init__(self, place: Path, python: str) -> None:
        self.place, self.python, self.cache = place / "clone", python, place / "cache"
        self.shell = {one: value for one, value in os.environ.items() if one in _KEPT or not _OURS.match(one)}
        for name in ("MAKEFLAGS", "MAKEOVERRIDES", "MFLAGS", "ARGS"):  # of the make that runs this test
            self.shell.pop(name, None)
        self.shell |= {"PIP_CONFIG_FILE": os.devnull, "STREAMRACE_CACHE": str(self.cache), "COLUMNS": "120"}
        subprocess.run(["git", "clone", "-q", str(ROOT), str(self.place)], check=True)

    def run(self, *words: str, status: int = 0, **more: str) -> str:
        done = subprocess.run(words, cwd=self.place, env={**self.shell, **more}, capture_output=True, text=True)
        assert done.returncode == status, done.stdout + done.stderr
        return done.stdout + done.stderr

    def make(self, *words: str) -> str:
        return self.run("make", f"PYTHON={self.python}", *words)


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Clone]:
    python = _python()
    if not python:
        say = pytest.fail if os.environ.get("ANYWHERE_REQUIRED") else pytest.skip
        say(f"there is no Python {WANTED} here: install it, or name another one (make test-anywhere PYTHON=...)")
    place = tmp_path_factory.mktemp("anywhere")
    yield Clone(place, python)
    shutil.rmtree(place)  # some 4 GB


def test_set_up_makes_a_cpu_build_of_the_wheel_alone(clone: Clone) -> None:
    told = clone.make("setup")
    assert re.search(r"setup: torch [\d.]+: downloading its wheel, without NVIDIA's libraries", told)
    assert re.search(r"setup: torch [\d.]+: \d{3} MB in \d+ s", told)
    listed = clone.run(".venv/bin/python", "-m", "pip", "list")
    assert re.search(r"^torch +[\d.]+\+cpu$", listed, re.MULTILINE)
    assert "nvidia" not in listed and "triton" not in listed
    clone.run(".venv/bin/python", "-m", "pip", "check")
    assert clone.run(".venv/bin/python", "-m", "streamrace.device.torches", "--constraint", "requirements.txt") == ""


def test_the_race_and_its_damage_are_the_same_to_the_last_digit(clone: Clone) -> None:
    told = clone.make("repro-unstable")
    assert "reversed by up to 297.4 ms" in " ".join(told.replace("│", " ").split())
    races = json.loads((clone.place / "runs" / "unstable" / "findings.json").read_text())["races"]
    assert [race["slack_ns"] for race in races] == [-297_364_269, -256_856_585]
    assert "Virtual time per step: 2842.0 ms, host blocked 2832.5 ms of it." in told


def test_with_the_fix_there_is_nothing_to_find(clone: Clone) -> None:
    assert "verdict: clean" in clone.make("repro-fixed")


def _snippet(clone: Clone) -> Path:
    """README's first program."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    found = re.search(r"<!-- train.py -->\n```python\n(.*?)```", text, re.DOTALL)
    assert found is not None
    program = clone.place.parent / "train.py"
    program.write_text(found[1])
    return program


def test_the_programs_race_is_found(clone: Clone) -> None:
    told = clone.run(".venv/bin/python", "-m", "streamrace", "check", str(_snippet(clone)), status=1)
    assert "never waits for stream 'default' after add" in told and "Race 1 is harmful" in told


def test_the_plugin_fails_the_one_test_that_races(clone: Clone) -> None:
    told = clone.run(".venv/bin/python", "-m", "pytest", "-q", "examples/test_prefetcher.py", status=1)
    assert "1 failed, 1 passed" in told


def test_a_program_is_checked_in_an_environment_with_the_cuda_build(clone: Clone) -> None:
    """The wheel as it was released, without NVIDIA's libraries; all other packages are those of the set-up."""
    place = clone.place.parent / "cuda"
    clone.run(clone.python, "-m", "venv", str(place))
    python = str(place / "bin" / "python")
    version = re.search(r"^torch==(\S+)$", (ROOT / "requirements.txt").read_text(), re.MULTILINE)
    assert version is not None
    clone.run(python, "-m", "pip", "install", "-q", "--no-deps", "--no-compile", f"torch=={version[1]}")
    (site,) = place.glob("lib/python3.*/site-packages")
    (others,) = clone.place.glob(".venv/lib/python3.*/site-packages")
    (site / "others.pth").write_text(f"{others}\n")  # behind its own
    assert (site / "torch" / "lib" / "libtorch_cuda.so").exists()
    told = clone.run(python, "-m", "streamrace", "check", str(_snippet(clone)), status=1, PIP_NO_INDEX="1")
    assert f"running with torch's CPU build in {clone.cache}" in told  # the set-up's: nothing is downloaded again
    assert "never waits for stream 'default' after add" in told


def _followed(page: str, clone: Clone, folder: Path) -> Story:
    path = f"{clone.place / '.venv' / 'bin'}{os.pathsep}{os.environ['PATH']}"
    story = Story(ROOT / page, folder, warm=False, variables={**clone.shell, "PATH": path})
    story.follow()
    return story


@pytest.mark.parametrize("page", ["README.md", "docs/how-to/changed-stream.md", "docs/how-to/nan.md"])
def test_a_door_is_followed_word_for_word_to_the_cure(page: str, clone: Clone, tmp_path: Path) -> None:
    assert _followed(page, clone, tmp_path).lines_until_the_cure() <= 25


def test_a_cluster_is_planned(clone: Clone, tmp_path: Path) -> None:
    assert _followed("docs/how-to/fit-and-pay.md", clone, tmp_path).printed
