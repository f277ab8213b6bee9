"""Measures the simulated GPU: an ``add_`` of 64 numbers against plain torch's, building it, and starting without it.

Processor time, which other load does not disturb. The child process (``python -m benchmarks.device``) has the device;
each round measures all ways in turn, so that all see the same load.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from benchmarks.figures import Figure
from streamrace.trace.records import TraceRecord

LIMITS = {"checked": 6.0, "replayable": 8.0}
BUILD_LIMIT_S = 60.0
NUMBERS = 64
OPERATIONS = 4_000  # of a round, in batches
BATCH = 500  # operations between two synchronisations of the host: about as many as a small layer's training step
ROUNDS = 7
_WAYS = {
    "plain": "plain torch",
    "issued": "issued on the simulated GPU, and executed",
    "packed": "... recorded with its call site, as it stands in a file",
    "recorded": "... recorded with its call site, as records",
    "checked": "... and checked by the detector",
    "replayable": "recorded for a replay, as records",
}


def measure(say: Callable[[str], None]) -> list[Figure]:
    """Measure all ways. Raises RuntimeError when the process that has the device fails."""
    say(f"device: {ROUNDS} rounds of {OPERATIONS} operations, each way")
    spent = _child()
    plain = spent["plain"]
    found = [Figure("device", f"add_ of {NUMBERS} numbers, {_WAYS['plain']}", median(plain), "us")]
    for way in list(_WAYS)[1:]:
        ratios = [mine / theirs for mine, theirs in zip(spent[way], plain, strict=True)]
        note = f"median of {ROUNDS} rounds side by side: {min(ratios):.2f} to {max(ratios):.2f}"
        limit = LIMITS.get(way)
        found.append(Figure("device", _WAYS[way], median(spent[way]), "us"))
        found.append(Figure("device", f"{_WAYS[way]}, against plain", median(ratios), "times", limit, note))
    say("device: the C++ part is built")
    found.append(Figure("device", "the C++ part, built once", build_seconds(), "s", BUILD_LIMIT_S, "processor time"))
    say("device: a command that does not need it")
    return [*found, *_start()]


def build_seconds() -> float:
    """Return the processor time of the compiler. Raises :class:`streamrace.compiling.BuildError`."""
    from streamrace import compiling
    from streamrace.device import build

    compiler = compiling.find_compiler()
    if compiler is None:
        raise RuntimeError("the C++ part is built with a C++ compiler, and there is none: install g++")
    with TemporaryDirectory() as folder:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        build.compile_library(compiler, build.torch_folder(), Path(folder, "libsimgpu.so"))
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def _start() -> list[Figure]:
    """Count the modules of torch that ``streamrace --help`` loads, and measure its time."""
    program = (
        "import sys, time, runpy\n"
        "sys.argv = ['streamrace', '--help']\n"
        "try: runpy.run_module('streamrace', run_name='__main__')\n"
        "except SystemExit: pass\n"
        "loaded = sum(name.split('.')[0] == 'torch' for name in sys.modules)\n"
        "print()\n"
        "print(loaded, time.process_time())\n"
    )
    seconds: list[float] = []
    loaded = 0
    for _ in range(ROUNDS):
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
        modules, spent = done.stdout.splitlines()[-1].split()
        loaded = int(modules)
        seconds.append(float(spent))
    return [
        Figure("device", "modules of torch that 'streamrace --help' loads", loaded, "", 0.0),
        Figure("device", "'streamrace --help', processor time", median(seconds), "s"),
    ]


def _child() -> dict[str, list[float]]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "benchmarks.device"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    if done.returncode:
        raise RuntimeError(f"the process with the simulated GPU failed:\n{done.stderr}")
    spent: dict[str, list[float]] = json.loads(done.stdout)
    return spent


# -- in the process that has the device ------------------------------------------------------------


def main() -> None:
    """Print the microseconds of an operation in each round, for each way."""
    from streamrace.device import launch

    launch.start()
    ways = {
        "plain": _plain,
        "issued": _issued,
        "packed": _packed,
        "recorded": _recorded,
        "checked": _checked,
        "replayable": _replayable,
    }
    spent: dict[str, list[float]] = {way: [] for way in ways}
    for round_ in range(ROUNDS + 1):
        for way, run in ways.items():
            seconds = run()
            if round_:  # the first fills caches
                spent[way].append(seconds / OPERATIONS * 1e6)
    print(json.dumps(spent))


def _issue(device: str, after_each_batch: Callable[[], object]) -> float:
    import torch

    x = torch.zeros(NUMBERS, device=device)
    began = time.process_time()
    for _ in range(OPERATIONS // BATCH):
        for _ in range(BATCH):
            x.add_(1)
        after_each_batch()
    return time.process_time() - began


def _plain() -> float:
    return _issue("cpu", lambda: None)


def _issued() -> float:
    import torch

    return _issue("cuda", torch.cuda.synchronize)


def _packed() -> float:
    with _tracer(lambda records: None, packed=True) as look:
        return _issue("cuda", look)


def _recorded() -> float:
    with _tracer(lambda records: None) as look:
        return _issue("cuda", look)


def _replayable() -> float:
    with _tracer(lambda records: None, record=True) as look:
        return _issue("cuda", look)


def _checked() -> float:
    from streamrace.detectors import RaceDetector

    detector = RaceDetector()
    with _tracer(lambda records: detector.feed(0, records)) as look:
        seconds = _issue("cuda", look)
    detector.finish()
    assert not detector.races
    return seconds


@contextmanager
def _tracer(
    write: Callable[[list[TraceRecord]], None], *, record: bool = False, packed: bool = False
) -> Iterator[Callable[[], None]]:
    """Yield a function that waits for the device, as reading a step's loss does, and flushes the recorded work."""
    import torch

    from streamrace.device.tracing import Tracer

    tracer = Tracer(write, record=record, packed=packed)

    def look() -> None:
        torch.cuda.synchronize()
        tracer.flush()

    try:
        yield look
    finally:
        tracer.close()


if __name__ == "__main__":
    main()
