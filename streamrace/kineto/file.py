"""Reads a trace of torch's profiler: its events by category, and the fields of an event."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from streamrace.trace import untrusted
from streamrace.trace.records import TraceError
from streamrace.trace.untrusted import shortened

Event = Mapping[str, Any]
WORK = ("kernel", "gpu_memcpy", "gpu_memset")
CALLS = ("cuda_runtime", "cuda_driver")
_SCHEMA = 1  # libkineto's kSchemaVersion
_NEVER = 1e18  # microseconds: to compute with times may not overflow
_LARGEST = 1 << 30  # bytes, unzipped: a minute of training


class KinetoTrace(NamedTuple):
    """The trace of one process. ``head``: all of the file but its events; ``events``: those that are objects."""

    path: Path
    head: Mapping[str, Any]
    events: list[Event]

    def of(self, *categories: str) -> list[Event]:
        """Return the events of these categories that have a duration, in the file's order."""
        return [event for event in self.events if event.get("cat") in categories and event.get("ph") == "X"]

    @property
    def gpu(self) -> str:
        """The name of the first GPU; empty if the trace has none."""
        devices = self.head.get("deviceProperties")
        first = devices[0] if isinstance(devices, list) and devices else {}
        return str(first.get("name", "")) if isinstance(first, dict) else ""


def read(path: Path) -> KinetoTrace:
    """Read the trace ``path`` (JSON, may be gzipped). Raises :class:`TraceError` with a sentence that names it."""
    try:
        trace = untrusted.read_json(path, largest=_LARGEST, finite=False, unzip=True)
    except OSError as error:
        raise TraceError(f"{path} cannot be read: {error.strerror or error}") from None
    except untrusted.Unreadable as error:
        raise TraceError(f"{path} is no trace: {error}") from None
    if isinstance(trace, list):
        trace = {"traceEvents": trace}
    if not isinstance(trace, dict) or not isinstance(trace.get("traceEvents"), list):
        raise TraceError(f"{path} is no trace of torch's profiler: it has no traceEvents")
    schema = trace.get("schemaVersion", _SCHEMA)
    if schema != _SCHEMA:
        raise TraceError(f"{path} has schemaVersion {shortened(repr(schema))}, and only {_SCHEMA} is known")
    return KinetoTrace(path, trace, [event for event in trace["traceEvents"] if isinstance(event, dict)])


def args(event: Event) -> Mapping[str, Any]:
    """Return the event's arguments; empty if it has none."""
    found = event.get("args")
    return found if isinstance(found, dict) else {}


def positive(value: Any) -> float | None:
    """Return a time or duration in microseconds, which is not negative; None for anything else."""
    good = isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < _NEVER
    return float(value) if good else None


def time(event: Event, name: str) -> float:
    """Return ``ts`` or ``dur`` in microseconds. Raises :class:`TraceError`."""
    value = positive(event.get(name))
    return value if value is not None else _refuse(event, name, event.get(name), "no time")


def whole(event: Event, name: str) -> int:
    """Return a whole number of the event's arguments. Raises :class:`TraceError`."""
    value = args(event).get(name)
    return value if type(value) is int else _refuse(event, name, value, "no whole number")


def _refuse(event: Event, name: str, value: Any, why: str) -> Any:
    called, said = shortened(str(event.get("name"))), shortened(repr(value))
    raise TraceError(f"the trace cannot be followed: its event '{called}' has {name} {said}, which is {why}")
