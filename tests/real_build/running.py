"""Programs on torch's real CUDA build, in processes of their own: an environment, ranks, what they print and log."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.real_build.building import ROOT, RealBuild

_OURS = re.compile(r"PYTHONPATH|STREAMRACE_|CUDA_|NCCL_|TORCH_|DS_|LD_PRELOAD|WORLD_SIZE|LOCAL_WORLD_SIZE|(LOCAL_)?RANK")


@dataclass(frozen=True)
class Ran:
    """A run that ended: the output and the log of calls of each rank."""

    status: int
    output: tuple[str, ...]
    calls: tuple[tuple[str, ...], ...]


def environment(real: RealBuild, **settings: str) -> dict[str, str]:
    """Return the variables with which a Python of this environment runs on the real build.

    ``settings`` are added: STREAMRACE_REAL_BUILD_DEVICES, _MEMORY (bytes of each), _UNREADY (how often queries of an
    event or a stream answer "not ready"), _LOG (a file), _MEETING (the folder in which ranks meet).
    """
    own = {name: value for name, value in os.environ.items() if not _OURS.match(name)}
    before = [path] if (path := own.get("LD_LIBRARY_PATH")) else []
    return {
        **own,
        "PYTHONPATH": os.pathsep.join([str(real.place), str(ROOT)]),
        "LD_LIBRARY_PATH": os.pathsep.join([str(real.libraries), *before]),
        "OMP_NUM_THREADS": "1",
        **settings,
    }


def run(real: RealBuild, words: Sequence[str], *, ranks: int = 0, seconds: float = 240, **settings: str) -> Ran:
    """Run ``python WORDS`` on the real build: one process, or so many ``ranks`` of one program.

    Raise :class:`subprocess.TimeoutExpired` after ``seconds``; no process is left.
    """
    fast = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=fast) as name:
        folder = Path(name)
        logs = [folder / f"calls{rank}" for rank in range(max(ranks, 1))]
        processes = []
        try:
            for rank, log in enumerate(logs):
                own = {"STREAMRACE_REAL_BUILD_LOG": str(log), "STREAMRACE_REAL_BUILD_MEETING": name}
                own |= _as_rank(rank, ranks, folder) if ranks else {}
                processes.append(
                    subprocess.Popen(
                        [sys.executable, *words],
                        env=environment(real, **own, **settings),
                        stdout=(folder / f"output{rank}").open("w"),
                        stderr=subprocess.STDOUT,
                    )
                )
            statuses = [process.wait(seconds) for process in processes]
        finally:
            for process in processes:
                process.kill()
                process.wait()
        texts = tuple((folder / f"output{rank}").read_text() for rank in range(len(logs)))
        calls = tuple(tuple(log.read_text().splitlines()) if log.exists() else () for log in logs)
        return Ran(next(filter(None, statuses), 0), texts, calls)


def _as_rank(rank: int, ranks: int, folder: Path) -> dict[str, str]:
    """Return the variables that launchers give to a rank. All ranks are on this node, each with its own device."""
    port = folder / "port"
    if not port.exists():
        with socket.socket() as one:
            one.bind(("127.0.0.1", 0))
            port.write_text(str(one.getsockname()[1]))
    return {
        "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks),
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port.read_text(), "GLOO_SOCKET_IFNAME": "lo",
        "STREAMRACE_REAL_BUILD_DEVICES": str(ranks),
    }  # fmt: skip
