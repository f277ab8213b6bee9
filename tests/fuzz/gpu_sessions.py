"""Sessions of a user's tests on the simulated GPU, in a process that starts in no time (gpu_started.py)."""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.warm import ROOT, Started, shell, with_simulated_gpu

_HEAD = """
import pytest
import torch
from streamrace import watch
"""


class GpuSession:
    """A folder with a user's tests, and pytest in it."""

    def __init__(self, process: Started, folder: Path) -> None:
        self._process = process
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
        words = ["-p", "streamrace.fuzz.testing.plugin", "-p", "no:cacheprovider", "--strict-markers", *arguments]
        self._process.ask(json.dumps([words, str(self.folder)]))
        status, printed = json.loads(self._process.stdout.readline())
        assert isinstance(printed, str)
        if expected:
            summary = printed.rstrip().rpartition("\n")[2]
            nouns = re.findall(r"(\d+) (passed|failed|skipped|errors|deselected)", summary)
            counted = {noun: int(count) for count, noun in nouns}
            assert counted == expected, printed
        else:
            assert status == pytest.ExitCode.USAGE_ERROR, printed
        return printed

    def token(self, told: str) -> str:
        found = re.search(r"Token: (\S+)", told)
        assert found is not None, told
        return found[1]


@pytest.fixture(scope="session")
def gpu_process() -> Iterator[Started]:
    """The process with the simulated GPU."""
    fixed = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "COLUMNS": "120"}
    # what other plugins import takes longer than a session
    environment = {**shell(), **fixed, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    script = str(Path(__file__).with_name("gpu_started.py"))
    process = with_simulated_gpu().start(script, environment=environment, session=True, asked=True)
    yield process
    process.ask(None)
    process.communicate()


@pytest.fixture
def gpu(gpu_process: Started, tmp_path: Path) -> GpuSession:
    return GpuSession(gpu_process, tmp_path)
