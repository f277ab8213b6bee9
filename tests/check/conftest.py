"""``repro check`` as a test calls it: in a folder of its own, in a process that starts in no time (started.py)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, Listener
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from reports.data import schema
from repro import processor

ROOT = Path(__file__).resolve().parents[2]


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

    def __init__(self, connection: Connection, folder: Path) -> None:
        self._connection = connection
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
        with_port = of | {"MASTER_PORT": str(_free_port())}
        ranks = [{"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(world)]
        return self.together([(arguments, with_port | rank) for rank in ranks])

    def together(self, commands: list[tuple[tuple[str, ...], dict[str, str]]], said: str = "") -> list[Done]:
        # what a race does to the program is asked in test_check_witnesses.py alone: it takes further runs
        few = ["--name", "it", "--witnesses", "0"]
        named = [([*few, *arguments], environment) for arguments, environment in commands]
        self._connection.send((named, str(self.folder), said))
        done = [Done(*one) for one in self._connection.recv()]
        file = self.folder / "runs" / "it" / "findings.json"
        if file.exists():
            schema.checked(
                schema.FindingsFile, file, findings := json.loads(file.read_text()), named=_FORMAT, version=1
            )
            for one in done:
                one.findings = findings
        return done


_FORMAT = "stream-race-findings"


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Connection]:
    """The process with the simulated GPU."""
    address = str(tmp_path_factory.mktemp("started") / "socket")
    shell = {name: value for name, value in os.environ.items() if name != "DS_ACCELERATOR"} | processor.KERNELS
    with Listener(address, "AF_UNIX") as listener:
        command = [sys.executable, str(Path(__file__).with_name("started.py")), address]
        child = subprocess.Popen(command, cwd=ROOT, env={**shell, "PYTHONPATH": str(ROOT), "COLUMNS": "120"})
        connection = listener.accept()
    yield connection
    connection.close()
    child.wait()


@pytest.fixture
def check(started: Connection, tmp_path: Path) -> Checking:
    return Checking(started, tmp_path)


Check = Callable[..., Done]


def _free_port() -> int:
    import socket

    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])
