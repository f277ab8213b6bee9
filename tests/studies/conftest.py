"""Dry runs import DeepSpeed once."""

from __future__ import annotations

import pytest

from streamrace.scenarios import rehearsal


@pytest.fixture(scope="session", autouse=True)
def _imports() -> None:
    rehearsal.preload()
