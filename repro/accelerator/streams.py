"""Streams and events as a program sees them, and the device that they belong to.

They have CUDA's semantics (CUDA C++ Programming Guide, "Asynchronous Concurrent Execution";
``torch.cuda.Stream``): a wait makes a stream wait and never the host; a record moves an event to the
stream's present position; waiting for an event that was never recorded is no wait.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from repro.trace import StreamName

if TYPE_CHECKING:
    from repro.accelerator.device import Device
    from repro.accelerator.timeline import Instant


class Stream:
    """An in-order queue of work."""

    def __init__(self, device: Device | torch.device | int | str | None = None, priority: int = 0, **_: object) -> None:
        # A program says "cuda" or a number: there is one device.
        self.device = active() if device is None or isinstance(device, (torch.device, int, str)) else device
        self.id = self.device.timeline.new_stream()
        self.priority = priority
        self.device.streams.append(self)
        self.rename(f"stream {self.id}")

    def rename(self, name: str) -> None:
        """The name under which reports show the stream."""
        self.name = name
        self.device.journal.note(StreamName(self.id, name))

    def synchronize(self) -> None:
        """Block the host until all work given to the stream is done."""
        self.device.synchronize_stream(self, "stream.synchronize")

    def wait_stream(self, stream: Stream) -> None:
        """Later work of this stream comes after all work given to ``stream`` so far."""
        device = self.device
        stack = device.sites.capture()
        if not device.ruled("stream.wait_stream", stack, self):
            event = Event()
            device.record(event, stream)
            device.wait(self, event, stack)

    def wait_event(self, event: Event) -> None:
        """Later work of this stream comes after what ``event`` recorded last."""
        device = self.device
        stack = device.sites.capture()
        if not device.ruled("stream.wait_event", stack, self):
            device.wait(self, event, stack)

    def record_event(self, event: Event | None = None) -> Event:
        event = event or Event()
        event.record(self)
        return event

    def query(self) -> bool:
        """Is all work done? An answer of True orders what the host does next."""
        event = Event()
        self.device.record(event, self)
        return self.device.query(event)

    def __eq__(self, other: object) -> bool:
        return self is other

    def __hash__(self) -> int:
        return id(self)

    def __repr__(self) -> str:
        return f"<simulated stream {self.id} '{self.name}'>"


class Event:
    """A position in a stream. Recording again moves it."""

    def __init__(self, enable_timing: bool = False, blocking: bool = False, **_: object) -> None:
        self.instant: Instant | None = None
        self.marker = -1

    def record(self, stream: Stream | None = None) -> None:
        device = stream.device if stream is not None else active()
        device.record(self, stream or device.current_stream())

    def wait(self, stream: Stream | None = None) -> None:
        (stream or active().current_stream()).wait_event(self)

    def synchronize(self) -> None:
        """Block the host until what was recorded is done."""
        device = active()
        stack = device.sites.capture()
        if self.instant is not None and not device.ruled("event.synchronize", stack, device.current_stream()):
            device.host_wait(self, "synchronize", stack)

    def query(self) -> bool:
        return active().query(self)

    def elapsed_time(self, end: Event) -> float:
        """Virtual milliseconds between two recorded events. Blocks the host until both have passed."""
        if self.instant is None or end.instant is None:
            raise RuntimeError("both events must be recorded before their elapsed time is asked for")
        device = active()
        for event in (self, end):
            device.host_wait(event, "synchronize", device.sites.capture())
        return (end.instant.known - self.instant.known) / 1e6


_active: Device | None = None


def active() -> Device:
    """The device of this process. Raises RuntimeError outside ``with device:``."""
    if _active is None:
        raise RuntimeError("no simulated device is active: use it inside 'with device:'")
    return _active


def activate(device: Device | None) -> None:
    """Make it the device of this process; None: no more. Raises RuntimeError when there is one already."""
    global _active
    if device is not None and _active is not None:
        raise RuntimeError("a simulated device is active already in this process")
    _active = device
