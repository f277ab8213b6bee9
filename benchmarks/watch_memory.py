"""Measures the memory that the NaN watch takes, next to the memory of the watched program."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Iterator
from typing import Any

from benchmarks.figures import Figure
from streamrace.detectors import NanWatch

LIMIT_BYTES, LIMIT_BYTES_PER_POINT = 2**20, 64
STEPS = 4


def memory(row: str, model: Any, optimizer: Any, batch: dict[str, Any]) -> Iterator[Figure]:
    """Measure Python's objects, by ``tracemalloc``, and the tensors that measurements are written into.

    Both the memory left after some steps, and the peak within them: during a step, observations wait to be read. The
    memory of the same steps without a watch is subtracted. The tokens of a step do not count: the watch holds no tensor
    of the program. A watch before the measurement has imported everything.
    """

    def step() -> None:
        model(**batch).loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    def traced(since: int) -> tuple[int, int]:
        """Return the bytes after some steps, and the peak within them, each less ``since``."""
        tracemalloc.reset_peak()
        for _ in range(STEPS):
            step()
        _, highest = tracemalloc.get_traced_memory()
        gc.collect()
        held, _ = tracemalloc.get_traced_memory()
        return held - since, highest - since

    with NanWatch(model):
        step()
    gc.collect()
    tracemalloc.start()
    try:
        step()
        gc.collect()
        bare = traced(tracemalloc.get_traced_memory()[0])
        before, _ = tracemalloc.get_traced_memory()
        with NanWatch(model) as watch:
            step()  # the points of outputs are known from the first step on
            held, highest = (ours - theirs for ours, theirs in zip(traced(before), bare, strict=True))
            points, tensors = len(watch._board._points), _tensors(watch)
    finally:
        tracemalloc.stop()
    limit = round((LIMIT_BYTES + LIMIT_BYTES_PER_POINT * points) / 1024)
    each = f"1 MiB and {LIMIT_BYTES_PER_POINT} bytes for each"
    note = f"{points} watched points: {each}; {tensors / 1024:.0f} KiB are tensors"
    yield Figure(row, "memory of the watch, after a step", (held + tensors) / 1024, "KiB", limit, note)
    yield Figure(row, "memory of the watch, the most within a step", (highest + tensors) / 1024, "KiB", limit)


def _tensors(watch: NanWatch) -> int:
    """Return the bytes that measurements are written into, on the device and on the host."""
    total = 0
    for lane in watch._board._lanes._lanes.values():
        total += lane.probes.nbytes + lane.sums.nbytes
        for host in {id(one): one for one in (*lane.spare, lane.host) if one is not None}.values():
            total += host.probes.nbytes + host.sums.nbytes + host.stamp.nbytes
    return total
