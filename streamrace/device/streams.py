"""Provides ``torch.cuda.Stream`` and ``torch.cuda.Event``, based on torch's own, which go through the guard."""

from __future__ import annotations

import ctypes
import gc
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from streamrace.device import tracing
from streamrace.device.library import functions
from streamrace.device.overrides import overridden, part
from streamrace.device.refusals import STREAM_OF_A_LIBRARY, refusal

_CUDA = 1  # c10::DeviceType
_POOL = 32  # csrc/device.h


class Stream(torch.Stream):
    """A stream of the simulated GPU, taken in turn from a pool of 32, as in torch."""

    def __new__(cls, device: Any = None, priority: int = 0, **kwargs: Any) -> Stream:
        if "stream_id" in kwargs:
            return super().__new__(cls, **kwargs)
        if "stream_ptr" in kwargs:
            refusal(*STREAM_OF_A_LIBRARY)()
        index = torch.cuda._utils._get_device_index(device, optional=True)
        stream = super().__new__(cls, device=torch.device("cuda", index), priority=priority)
        tracing.note_stream(stream.stream_id)
        return stream

    def record_event(self, event: torch.Event | None = None) -> torch.Event:
        event = Event() if event is None else event
        event.record(self)
        return event

    def wait_event(self, event: torch.Event) -> None:
        if not overridden("stream.wait_event", self):
            part(event.wait, self)

    def wait_stream(self, stream: torch.Stream) -> None:
        if not overridden("stream.wait_stream", self):
            self.come_behind(stream)

    def synchronize(self) -> None:
        if not overridden("stream.synchronize", self):
            super().synchronize()

    def come_behind(self, stream: torch.Stream) -> None:
        """Wait like :meth:`wait_stream`, but for a library's internal use, which no override replaces."""
        part(stream.record_event().wait, self)

    def rename(self, name: str) -> None:
        """Set the name under which reports show the stream. torch's streams have no names: a test may set one."""
        tracing.name_stream(self.stream_id, name)

    @staticmethod
    def priority_range() -> tuple[int, int]:
        """Return the lowest and the highest priority of the simulated pools."""
        return 0, -1

    @property
    def priority(self) -> int:
        return -1 if _POOL < tracing.place_of_stream(self.stream_id)[1] <= 2 * _POOL else 0

    @property
    def _as_parameter_(self) -> ctypes.c_void_p:
        return ctypes.c_void_p(self.cuda_stream)

    @property
    def cuda_stream(self) -> int:
        """Return the number that replaces CUDA's pointer to the stream."""
        return int(self.stream_id)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, torch.Stream) and self.stream_id == other.stream_id

    def __hash__(self) -> int:
        return hash(("cuda", self.stream_id))

    def __repr__(self) -> str:
        return f"<torch.cuda.Stream device={self.device} cuda_stream={self.cuda_stream:#x}>"


def on(device: torch.device) -> AbstractContextManager[Any]:
    """Make ``device`` the current one in a ``with``, if the process uses several."""
    return torch.cuda.device(device) if functions().most() > 1 else nullcontext()


def current() -> torch.Stream:
    """Return this thread's stream on the device that the process uses.

    It may differ from torch's current device, unless the process uses several.
    """
    f = functions()
    return torch.Stream.__new__(Stream, stream_id=f.current_stream(), device_index=f.index(), device_type=_CUDA)


def hidden(name: str) -> Stream:
    """Create an internal stream, which no program can get."""
    stream = Stream(stream_id=functions().hidden_stream(), device_index=functions().index(), device_type=_CUDA)
    tracing.streams[stream.stream_id] = name
    return stream


class ExternalStream(Stream):
    """Refused: the simulated GPU has no streams of other libraries."""

    def __new__(cls, stream_ptr: int, device: Any = None, **kwargs: Any) -> ExternalStream:
        refusal(*STREAM_OF_A_LIBRARY)()


class _Events(type(torch.Event)):  # type: ignore[misc]
    def __instancecheck__(cls, instance: object) -> bool:
        return type(instance) is torch.Event or type.__instancecheck__(cls, instance)


class Event(torch.Event, metaclass=_Events):
    """A position in a stream. Recording again moves it; its times are virtual.

    Calling the class creates a ``torch.Event``: torch's own methods take events of exactly that type.
    """

    def __new__(  # type: ignore[misc]
        cls, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False, external: bool = False
    ) -> torch.Event:
        if external:
            refusal("an event that is a node of a CUDA graph (external=True)", "record it outside of the graph")()
        if interprocess:
            refusal("events between processes (CUDA IPC)", "use torch.distributed")()
        return torch.Event("cuda", enable_timing=enable_timing, blocking=blocking)


def install() -> None:
    """Give ``torch.Event`` the attributes of ``torch.cuda.Event``: a number in place of CUDA's pointer, and its device.

    The number is 0 and the device None before the event is recorded. Attributes of a compiled type can only be set
    in its dictionary.
    """
    (attributes,) = gc.get_referents(torch.Event.__dict__)
    attributes["cuda_event"] = property(lambda event: event.event_id)
    device: Any = attributes["device"]
    attributes["device"] = property(lambda event: found if (found := device.__get__(event)).index is not None else None)
    attributes["_as_parameter_"] = property(lambda event: ctypes.c_void_p(event.event_id))
    ctypes.pythonapi.PyType_Modified(ctypes.py_object(torch.Event))
