"""Reads a trace of torch's profiler (Kineto, Chrome's format): the kernels, their operators and durations.

A kernel names its operator by the number "External id"; if it does not (older traces number launches by it), the launch
with the kernel's "correlation" lies within the operator's time, on the operator's thread. An operator's kernels are
summed, and belong to the innermost operator around them whose work is known.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from streamrace.device.hardware.kernels import Signature
from streamrace.kineto import file
from streamrace.kineto.file import Event
from streamrace.scenarios.base import ScenarioError
from streamrace.studies.calibration import operators

_CAPTURE = "record it with torch.profiler.profile(record_shapes=True), and export_chrome_trace"


class Ran(NamedTuple):
    """An operator's kernels: ``us`` microseconds together; ``kind``: matmul, attention, memory, host, ..."""

    kind: str
    signature: Signature
    us: float


class ProfilerTrace(NamedTuple):
    """A trace. ``ran``: operators of known work; ``left``: number of other kernels by reason; ``launches``: us each."""

    ran: tuple[Ran, ...]
    left: Mapping[str, int]
    launches: tuple[float, ...]
    device: str
    kernels: int


def read(path: Path) -> ProfilerTrace:
    """Read the trace ``path`` (JSON, may be gzipped). Raises TraceError; ScenarioError if no kernel can be used."""
    trace = file.read(path)
    kernels, operations = trace.of("kernel", "gpu_memcpy"), trace.of("cpu_op")
    if not kernels and operations:
        raise ScenarioError(
            f"{path} is a trace of the CPU alone: profile with activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]"
        )
    if not kernels:
        raise ScenarioError(f"{path} holds no kernels of a GPU: {_CAPTURE}")
    if not any(file.args(event).get("Input Dims") for event in operations):
        raise ScenarioError(f"{path} does not say the shapes that operators worked on: {_CAPTURE}")
    launches = trace.of("cuda_runtime")
    skipped: dict[str, int] = {}
    together: dict[tuple[Any, ...], tuple[operators.Placed, float]] = {}
    around = _Around(operations, launches)
    for number, event in enumerate(kernels):
        took = file.positive(event.get("dur"))
        if took is None:
            skipped["no duration"] = skipped.get("no duration", 0) + 1
            continue
        placed = operators.copied(event) or _first(around.of(event), str(event.get("name", "")))
        if isinstance(placed, str):
            skipped[placed] = skipped.get(placed, 0) + 1
            continue
        key = (number,) if placed.key is None else (placed.key,)
        before = together.get(key)
        # Any kernel of a product (its parts, their sum) may show that the product ran on tensor cores.
        tensor = before is None or "tf32" in placed.signature.dtypes
        together[key] = (placed if tensor or before is None else before[0], took + (before[1] if before else 0.0))
    ran = tuple(Ran(placed.kind, placed.signature, took) for placed, took in together.values())
    launched = (file.positive(event.get("dur")) for event in launches if event.get("name") == "cudaLaunchKernel")
    return ProfilerTrace(ran, skipped, tuple(launch for launch in launched if launch), trace.gpu, len(kernels))


def _first(chain: Iterable[Event], kernel: str) -> operators.Placed | str:
    """Return the work of the innermost operator whose work is known; else the reason why none is."""
    innermost = ""
    for event in chain:
        innermost = innermost or str(event.get("name"))
        placed = operators.placed(event, kernel)
        if placed is not None:
            return placed
    return f"{innermost}: not among the operators that are known" if innermost else "no operator around it"


class _Around:
    """Finds the operators around a kernel's launch, innermost first."""

    def __init__(self, operations: Sequence[Event], launches: Sequence[Event]) -> None:
        self._by_number = _by(operations, "External id")
        self._launches = _by(launches, "correlation")
        self._chains = {id(event): chain for event, chain in _nested([*operations, *launches])}

    def of(self, kernel: Event) -> list[Event]:
        parent = self._by_number.get(_number_of(kernel, "External id"))
        launch = self._launches.get(_number_of(kernel, "correlation"))
        chain = self._chains.get(id(launch), []) if launch is not None else []
        if chain or parent is None:
            return chain
        return [parent, *self._chains.get(id(parent), [])]


def _nested(events: Sequence[Event]) -> Iterator[tuple[Event, list[Event]]]:
    """Yield each event with the events of its thread that enclose it, innermost first."""
    threads: dict[tuple[str, str], list[tuple[float, float, int, Event]]] = {}
    for number, event in enumerate(events):
        start, took = file.positive(event.get("ts")), file.positive(event.get("dur"))
        if start is not None and took is not None:
            thread = str(event.get("pid")), str(event.get("tid"))
            threads.setdefault(thread, []).append((start, -took, number, event))
    for spans in threads.values():
        open_now: list[tuple[float, Event]] = []
        for start, less, _, event in sorted(spans):
            while open_now and open_now[-1][0] < start - less:
                open_now.pop()
            yield event, [outer for _, outer in reversed(open_now)]
            if event.get("cat") == "cpu_op":
                open_now.append((start - less, event))


def _number_of(event: Event, name: str) -> str | None:
    """Return the number that links events to each other, as text; None if the event has none."""
    number = file.args(event).get(name)
    return None if number is None else str(number)


def _by(events: Iterable[Event], name: str) -> dict[str | None, Event]:
    return {number: event for event in events if (number := _number_of(event, name)) is not None}
