"""What is fuzzed: recordings of stock DeepSpeed."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from streamrace.fuzz.subject import Subject
from streamrace.scenarios import program
from streamrace.scenarios.scenario import scenario


@pytest.fixture(scope="session")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """``recorded(fix)``: the traces of two steps with that fix, in which no race shows.

    The tests of this folder run in one process (``tests/scheduling.py``), so each is made once.
    """

    @cache
    def of(fix: str) -> Path:
        folder = tmp_path_factory.mktemp(f"recorded-{fix}")
        program.preload()
        chosen = scenario(size="tiny", steps=2, accumulation=1, sequence=32, fix=fix, hardware="a100-12.5gbps")
        program.run(chosen, simulated=True, folder=folder, record=True)
        return folder / "trace"

    return of


@pytest.fixture(scope="session")
def subject(recorded: Callable[[str], Path]) -> Callable[[str], Subject]:
    """``subject(fix)``: the same, ready to be executed."""
    return cache(lambda fix: Subject.load(recorded(fix)))
