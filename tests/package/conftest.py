"""The wheel that ``make wheel`` built, and an environment for each extra, made when a test first asks for it."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from tests.package.environments import Environment, environment

ROOT = Path(__file__).resolve().parents[2]
EnvironmentOf = Callable[[str], Environment]


@pytest.fixture(scope="session")
def wheel() -> Path:
    found = list((ROOT / "dist").glob("*.whl"))
    assert len(found) == 1, "there is no wheel to test: run make test-wheel"
    return found[0]


@pytest.fixture(scope="session")
def environment_of(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> EnvironmentOf:
    """The environment with an extra (none: ""), and pytest: who has tests of stream code has that."""
    folder = tmp_path_factory.mktemp("outside")  # one for all: what one environment writes, another reads

    @cache
    def make(extra: str) -> Environment:
        place = tmp_path_factory.mktemp(f"environment-{extra}")
        return environment(wheel, [extra] if extra else [], ["pytest"], place, folder)

    return make
