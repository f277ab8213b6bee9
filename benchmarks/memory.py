"""Measures the memory of the ranks together."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Event, Thread

from benchmarks.device_rows import apart
from benchmarks.figures import Figure
from streamrace.scenarios import program
from streamrace.scenarios.messages import Report, TrainingEnded
from streamrace.scenarios.scenario import scenario

LIMIT_GIB = 6.0
STEPS = 4
_INTERVAL_S = 0.1


def measure(say: Callable[[str], None]) -> list[Figure]:
    return apart("memory", say)


def measured(say: Callable[[str], None]) -> list[Figure]:
    """Return two figures, because the ranks are forked and share most of torch's pages."""
    say("memory: one simulated run")
    program.preload()
    peaks: dict[int, int] = {}
    sampler = _Sampler()

    def receive(rank: int, report: Report) -> None:
        if isinstance(report, TrainingEnded):
            peaks[rank] = report.memory

    chosen = scenario(steps=STEPS)
    with TemporaryDirectory() as folder, sampler:
        program.run(chosen, simulated=True, folder=Path(folder), receive=receive, started=sampler.watch)
    together = f"{chosen.ranks} ranks together"
    figures = [
        Figure(
            "memory",
            f"{together}, resident",
            sum(peaks.values()) / 2**30,
            "GiB",
            LIMIT_GIB,
            "sum of peaks; shared pages count once per rank",
        )
    ]
    if sampler.peak:
        note = f"shared pages divided; sampled every {_INTERVAL_S:g} s"
        figures.append(Figure("memory", f"{together}, proportional", sampler.peak / 2**30, "GiB", LIMIT_GIB, note))
    return figures


class _Sampler:
    """Samples the sum of the processes' proportional set sizes, and keeps the highest; 0 where /proc has none."""

    def __init__(self) -> None:
        self.peak = 0
        self._over = Event()
        self._thread: Thread | None = None

    def __enter__(self) -> _Sampler:
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        if self._thread is not None:
            self._thread.join()

    def watch(self, pids: list[int]) -> None:
        self._thread = Thread(target=self._sample, args=(pids,), daemon=True)
        self._thread.start()

    def _sample(self, pids: list[int]) -> None:
        while not self._over.wait(_INTERVAL_S):
            self.peak = max(self.peak, sum(map(_proportional, pids)))


def _proportional(pid: int) -> int:
    """Return bytes, from the kernel's sum: reading ``smaps``, as psutil does, is slow with torch's many mappings."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii").splitlines()
    except OSError:  # the process has ended, or this is not Linux
        return 0
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))
