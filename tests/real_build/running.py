"""Programs on torch's real CUDA build and on the simulated device: what they print, and what the former's log says."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import wait
from pathlib import Path

from tests.real_build.building import ROOT, RealBuild

PROGRAMS = Path(__file__).with_name("programs")
_SECONDS = 200
_OURS = re.compile(r"PYTHONPATH|STREAMRACE_|CUDA_|CUBLAS_|NCCL_|TORCH_|DS_|LD_PRELOAD|(LOCAL_)?(WORLD_SIZE|RANK)$")


@dataclass(frozen=True)
class Ran:
    """A run that ended in good order: the lines of all ranks, sorted by rank, and each rank's log of calls."""

    lines: tuple[str, ...]
    calls: tuple[tuple[str, ...], ...] = ()

    @property
    def sorted_lines(self) -> list[str]:
        """Return the lines without an order: ranks of the simulated device share a terminal."""
        return sorted(self.lines)


def environment(real: RealBuild, **settings: str) -> dict[str, str]:
    """Return the variables with which a Python of this environment runs on the real build.

    ``settings`` are added: STREAMRACE_REAL_BUILD_DEVICES, _MEMORY (bytes of each), _UNREADY (how often queries of an
    event or a stream answer "not ready"), _LOG (a file), _MEETING (the folder in which ranks meet).
    """
    own = _clean()
    before = [path] if (path := own.get("LD_LIBRARY_PATH")) else []
    own["PYTHONPATH"] = os.pathsep.join([str(real.place), str(ROOT)])
    own["LD_LIBRARY_PATH"] = os.pathsep.join([str(real.libraries), *before])
    return own | settings


def _clean() -> dict[str, str]:
    """Return the variables of this process without those that decide something in torch or in the project."""
    own = {name: value for name, value in os.environ.items() if not _OURS.match(name)}
    return own | {"OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0"}  # sums depend on the number of threads


def run(real: RealBuild, *words: str | Path, ranks: int = 0, **settings: str) -> Ran:
    """Run ``python WORDS`` on the real build: one process, or so many ``ranks`` of one program.

    Raise AssertionError with the messages of a process that fails, or of all if they take too long. No process is left.
    """
    fast = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=fast) as name:
        folder = Path(name)
        numbers = range(max(ranks, 1))
        processes = []
        try:
            for rank in numbers:
                own = {"STREAMRACE_REAL_BUILD_LOG": str(folder / f"calls{rank}"), "STREAMRACE_REAL_BUILD_MEETING": name}
                own |= _as_rank(rank, ranks, folder) if ranks else {}
                with (folder / f"out{rank}").open("w") as out, (folder / f"errors{rank}").open("w") as errors:
                    command = [sys.executable, *map(str, words)]
                    variables = environment(real, **(own | settings))
                    processes.append(subprocess.Popen(command, env=variables, stdout=out, stderr=errors))
            failed = _first_failed(processes)
        finally:
            for process in processes:
                process.kill()
                process.wait()
        if failed is not None:
            raise AssertionError(
                "".join((folder / f"errors{rank}").read_text() for rank in numbers if failed < 0 or rank == failed)
            )
        lines = [line for rank in numbers for line in (folder / f"out{rank}").read_text().splitlines()]
        logs = [folder / f"calls{rank}" for rank in numbers]
        return Ran(tuple(lines), tuple(tuple(log.read_text().splitlines()) if log.exists() else () for log in logs))


def _first_failed(processes: Sequence[subprocess.Popen[bytes]]) -> int | None:
    """Wait for all processes, or for the first that fails; return its number, -1 if they take too long."""
    running = {os.pidfd_open(process.pid): number for number, process in enumerate(processes)}
    try:
        while running:
            ended = wait(list(running), _SECONDS)
            if not ended:
                return -1
            for descriptor in ended:
                number = running.pop(descriptor)  # type: ignore[arg-type]  # descriptors went in
                os.close(descriptor)  # type: ignore[arg-type]
                if processes[number].wait():
                    return number
        return None
    finally:
        for descriptor in running:
            os.close(descriptor)


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


def simulate(*words: str | Path, ranks: int = 0, trace: Path | None = None, **settings: str) -> Ran:
    """Run a program on the simulated device. ``trace``: the file of its trace; with ranks, the folder.

    ``settings`` are variables of the environment.

    Raise AssertionError with its messages if it fails.
    """
    options = [*(["--ranks", str(ranks)] if ranks else []), *(["--trace", str(trace)] if trace else [])]
    done = subprocess.run(
        [sys.executable, "-m", "streamrace.device", *options, *map(str, words)],
        env=_clean() | {"PYTHONPATH": str(ROOT)} | settings,
        capture_output=True, text=True, timeout=_SECONDS, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return Ran(tuple(done.stdout.splitlines()))


def hpz(folder: Path) -> Path:
    """Write the example of hpZ with torch's Adam: DeepSpeed compiles its own, for which CUDA's compiler is needed."""
    text = (ROOT / "examples" / "deepspeed_hpz.py").read_text(encoding="utf-8")
    adam = text.replace('"params": {"lr": 1e-3}', '"params": {"lr": 1e-3, "torch_adam": True}')
    assert adam != text
    program = folder / "hpz.py"
    program.write_text(adam, encoding="utf-8")
    return program
