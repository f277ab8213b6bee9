"""Sessions of a user's tests on the simulated GPU, each in a fork of a process that has imported what they need."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.warm import ROOT, Warm, shell, with_simulated_gpu

_HEAD = """
import pytest
import torch
from streamrace import watch
"""


class GpuSession:
    """A folder with a user's tests, and pytest in it."""

    def __init__(self, warm: Warm, folder: Path) -> None:
        self._warm = warm
        self.folder = folder

    def file(self, *parts: str) -> None:
        text = _HEAD + "".join(textwrap.dedent(part) for part in parts)
        (self.folder / "test_user.py").write_text(text)

    def line(self, part: str) -> str:
        """Where it stands, as a report says it."""
        lines = (self.folder / "test_user.py").read_text().splitlines()
        return f"test_user.py:{1 + next(at for at, line in enumerate(lines) if part in line)}"

    def run(self, *arguments: str, **expected: int) -> str:
        """Everything that pytest prints. ``expected``: how many tests passed, failed and so on."""
        words = [
            "-m",
            "pytest",
            "-p",
            "streamrace.fuzz.testing.plugin",
            "-p",
            "no:cacheprovider",
            "--strict-markers",
            *arguments,
        ]
        done = self._warm.run(*words, folder=self.folder, environment=_environment())
        printed = done.stderr + done.stdout
        if expected:
            summary = printed.rstrip().rpartition("\n")[2]
            nouns = re.findall(r"(\d+) (passed|failed|skipped|errors|deselected)", summary)
            counted = {noun: int(count) for count, noun in nouns}
            assert counted == expected, printed
        else:
            assert done.returncode == pytest.ExitCode.USAGE_ERROR, printed
        return printed

    def token(self, told: str) -> str:
        found = re.search(r"Token: (\S+)", told)
        assert found is not None, told
        return found[1]


def _environment() -> dict[str, str]:
    fixed = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "COLUMNS": "120"}
    # what other plugins import takes longer than a session
    return {**shell(), **fixed, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}


@pytest.fixture(scope="session")
def gpu_process() -> Iterator[Warm]:
    """The process with the simulated GPU."""
    modules = ["pytest", "streamrace.fuzz.testing.live_trial"]
    warm = Warm(modules, environment=_environment(), of=with_simulated_gpu())
    yield warm
    warm.close()


@pytest.fixture
def gpu(gpu_process: Warm, tmp_path: Path) -> GpuSession:
    return GpuSession(gpu_process, tmp_path)
