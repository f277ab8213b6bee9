"""Sessions of a user's tests, run by pytest within pytest."""

from __future__ import annotations

import textwrap

import pytest
import torch

import fuzz.testing.trial  # torch must be there before pytester, which forgets what is imported inside
from repro.replay.record_old import record

_HEAD = """
import pytest
import torch
import torch.distributed as dist
from fuzz.streams import Event, Stream, current_stream, stream, watch
"""


class Session:
    """One session of a user's tests."""

    def __init__(self, pytester: pytest.Pytester) -> None:
        self.pytester = pytester

    def file(self, *parts: str) -> None:
        self.pytester.makepyfile(test_user=_HEAD + "".join(textwrap.dedent(part) for part in parts))

    def run(self, *args: str, passed: int = 0, failed: int = 0, deselected: int = 0, **more: int) -> str:
        result = self.pytester.runpytest_inprocess(
            "-p", "no:cacheprovider", "-p", "no:randomly", "--strict-markers", *args
        )
        result.assert_outcomes(passed=passed, failed=failed, deselected=deselected, **more)
        return result.stdout.str()


@pytest.fixture(scope="session")
def warm() -> None:
    """What torch imports at its first uses must be there too."""
    fuzz.testing.trial.Subject(record(lambda device: torch.ones(1).tolist()))


@pytest.fixture
def session(warm: None, pytester: pytest.Pytester) -> Session:
    return Session(pytester)
