"""Measures CUDA graphs on the simulated GPU: a launch of a replay against the same launch issued by the host."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from statistics import median

from benchmarks.device_rows import apart
from benchmarks.figures import Figure

NUMBERS, LAUNCHES, ROUNDS = 64, 500, 9


def measure(say: Callable[[str], None]) -> list[Figure]:
    return apart("graphs", say)


def measured(say: Callable[[str], None]) -> Iterator[Figure]:
    """Yield the processor time of a launch, both ways in turn, and that of a captured launch."""
    import torch

    say(f"graphs: {ROUNDS} rounds of {LAUNCHES} launches, each way")
    numbers = torch.ones(NUMBERS, device="cuda")
    graph = torch.cuda.CUDAGraph()

    def issue() -> None:
        for _ in range(LAUNCHES):
            numbers.add_(1)

    def capture() -> None:
        with torch.cuda.graph(graph):
            issue()

    issue()
    captured = _timed(capture)
    graph.replay()
    rounds = [(_timed(issue), _timed(graph.replay)) for _ in range(ROUNDS)]
    ratios = [replayed / issued for issued, replayed in rounds]
    note = f"median of {ROUNDS} rounds side by side: {min(ratios):.2f} to {max(ratios):.2f}"
    what = f"add_ of {NUMBERS} numbers"
    yield Figure("graphs", f"{what}, issued and executed", median(issued for issued, _ in rounds), "us")
    yield Figure("graphs", f"{what}, replayed and executed", median(replayed for _, replayed in rounds), "us")
    yield Figure("graphs", "replayed against issued", median(ratios), "times", None, note)
    yield Figure("graphs", f"{what}, captured", captured, "us")


def _timed(run: Callable[[], None]) -> float:
    """Return the microseconds of processor time for a launch, the device's work included."""
    import torch

    torch.cuda.synchronize()
    began = time.process_time()
    run()
    torch.cuda.synchronize()
    return (time.process_time() - began) / LAUNCHES * 1e6
