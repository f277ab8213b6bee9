"""The real build, made once for the session."""

from __future__ import annotations

import pytest

from tests.real_build.building import RealBuild, ready


@pytest.fixture(scope="session")
def real() -> RealBuild:
    return ready()
