"""``streamrace check`` as a test calls it: in a folder of its own, in a process that starts at once (tests/warm.py)."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from streamrace.device.ranks.ports import free_port
from streamrace.reports.data.findings import Findings
from streamrace.reports.data.schema import read_json
from tests.warm import ROOT, Warm, with_simulated_gpu


@dataclass
class Done:
    """What a command left: ``findings`` are those of its run folder, empty where it has none."""

    status: int
    out: str
    err: str
    findings: dict[str, Any] = field(default_factory=dict)

    @property
    def told(self) -> str:
        """What was printed, on one line and without the frame."""
        return " ".join(self.out.replace("│", " ").split())


class Checking:
    """A folder with scripts, and the command in it."""

    def __init__(self, warm: Warm, folder: Path) -> None:
        self._warm = warm
        self.folder = folder

    def script(self, text: str, name: str = "train.py") -> str:
        (self.folder / name).write_text(dedent(text).lstrip())
        return name

    def __call__(self, *arguments: str, said: str = "", **environment: str) -> Done:
        (done,) = self.together([(arguments, environment)], said=said)
        return done

    def ranks(self, world: int, *arguments: str) -> list[Done]:
        """The same command as ``world`` ranks of one launcher."""
        of = {"WORLD_SIZE": str(world), "LOCAL_WORLD_SIZE": str(world), "MASTER_ADDR": "127.0.0.1"}
        with_port = of | {"MASTER_PORT": str(free_port())}
        ranks = [{"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(world)]
        return self.together([(arguments, with_port | rank) for rank in ranks])

    def together(self, commands: list[tuple[tuple[str, ...], dict[str, str]]], said: str = "") -> list[Done]:
        # what a race does to the program is asked in test_check_witnesses.py alone: it takes further runs
        few = ["--name", "it", "--witnesses", "0"]
        shell = {name: value for name, value in os.environ.items() if name != "DS_ACCELERATOR"}
        shell |= {"PYTHONPATH": str(ROOT), "COLUMNS": "120"}
        begin = partial(self._warm.start, "-m", "streamrace", "check", *few, folder=self.folder, said=said)
        started = [begin(*arguments, environment=shell | more) for arguments, more in commands]
        ended = [one.completed() for one in started]
        done = [Done(one.returncode, one.stdout, one.stderr) for one in ended]
        file = self.folder / "runs" / "it" / "findings.json"
        if file.exists():
            Findings.parsed(file, findings := read_json(file))
            for one in done:
                one.findings = findings
        return done


@pytest.fixture
def check(tmp_path: Path) -> Checking:
    return Checking(with_simulated_gpu(), tmp_path)


Check = Callable[..., Done]
