"""A reference is computed once for the same scenario, versions and code; what is another one is computed again."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from rich.console import Console

import streamrace.scenarios.models as library
from streamrace.detectors import Values
from streamrace.reports.screen.terminal import Progress
from streamrace.repro.sessions import references
from streamrace.scenarios.scenario import Scenario, scenario

SMALL = {"size": "tiny", "steps": 1, "sequence": 32, "ranks": 2, "nodes": 1}


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(references, "kept_folder", lambda name: tmp_path / name)
    return tmp_path / "references"


class Told(Progress):
    """What a person sees while it runs."""

    def __init__(self) -> None:
        super().__init__(Console(quiet=True), "", 1)
        self.said: list[str] = []

    def doing(self, what: str) -> None:
        self.said.append(what)


def reference(made: Scenario, folder: Path, *, again: bool = False) -> tuple[Values, str]:
    progress = Told()
    values = references.kept_reference(made, folder, progress, again=again)
    assert progress.row(1).reference  # shown beside the losses either way
    return values, progress.said[-1].partition(":")[2].split()[0]


def test_the_second_run_takes_it_as_it_was_whatever_the_fix(kept: Path, tmp_path: Path) -> None:
    first, how = reference(scenario(**SMALL, fix="none"), tmp_path / "one")
    assert how == "stock"
    second, how = reference(scenario(**SMALL, fix="event"), tmp_path / "two")
    assert how == "kept" and second == first
    third, how = reference(scenario(**SMALL, seed=1), tmp_path / "three")
    assert how == "stock" and third != first


@pytest.fixture
def computed(monkeypatch: pytest.MonkeyPatch) -> Values:
    """What the ranks would say, at once: here it is asked when they run, not what they compute."""
    values = Values()
    values.add(0, [(1, 0, 2.5)], [(1, 0, "forward", "weight", [7, 8], 0, 0.0)], [(1, 0.5)])
    values.final[0] = {"weight": 9}

    def run(made: Scenario, folder: Path, progress: Progress) -> Values:
        progress.doing("reference: stock")
        progress.row(1).reference.append(2.5)
        return values

    monkeypatch.setattr(references, "reference_of", run)
    return values


def test_it_is_run_again_where_it_may_be_another(
    kept: Path, computed: Values, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A library that was edited, a file that is not as it was written, a person who asks for it."""
    made = scenario(**SMALL)
    assert reference(made, tmp_path) == (computed, "stock")
    edited = tmp_path / "models.py"
    edited.write_text(Path(library.__file__).read_text())
    with monkeypatch.context() as patch:
        patch.setattr(library, "__file__", str(edited))
        assert reference(made, tmp_path)[1] == "stock"
        assert reference(made, tmp_path)[1] == "kept"
        os.utime(edited, ns=(0, 0))
        assert reference(made, tmp_path)[1] == "stock"
    assert reference(made, tmp_path) == (computed, "kept")
    for file in kept.iterdir():
        content = bytearray(file.read_bytes())
        content[len(content) // 2] ^= 1
        file.write_bytes(content)
    assert reference(made, tmp_path) == (computed, "stock")
    assert reference(made, tmp_path, again=True) == (computed, "stock")


def test_what_depends_on_other_files_is_never_kept(kept: Path, computed: Values, tmp_path: Path) -> None:
    made = scenario(**SMALL, data=str(Path(library.__file__).with_name("data") / "mmlu"))
    for _ in range(2):
        assert reference(made, tmp_path) == (computed, "stock")
    assert not kept.exists()
