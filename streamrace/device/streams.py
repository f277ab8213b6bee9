"""``torch.cuda.Stream`` and ``torch.cuda.Event``: torch's own streams and events, which go through the guard."""

from __future__ import annotations

import ctypes
import gc
import itertools
from typing import Any

import torch

from streamrace.device import tracing
from streamrace.device.library import functions
from streamrace.device.overrides import overridden, part

_CUDA = 1  # c10::DeviceType
_POOL = 32  # csrc/device.h
_EXTERNAL = "streamrace: a stream of another library (ExternalStream) cannot be simulated: use torch.cuda.Stream()"


class Stream(torch.Stream):
    """A stream of the simulated GPU, taken in turn from a pool of 32 as torch does it."""

    def __new__(cls, device: Any = None, priority: int = 0, **kwargs: Any) -> Stream:
        if "stream_id" in kwargs:
            return super().__new__(cls, **kwargs)
        if "stream_ptr" in kwargs:
            raise RuntimeError(_EXTERNAL)
        index = torch.cuda._utils._get_device_index(device, optional=True)
        stream = super().__new__(cls, device=torch.device("cuda", index), priority=priority)
        tracing.made(stream.stream_id)
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
        """What :meth:`wait_stream` does, where a library does it and no program."""
        part(stream.record_event().wait, self)

    def rename(self, name: str) -> None:
        """The name under which reports show the stream. torch's streams have none: a test may give one."""
        tracing.name_stream(self.stream_id, name)

    @staticmethod
    def priority_range() -> tuple[int, int]:
        """Lowest and highest: of the pools that are simulated."""
        return 0, -1

    @property
    def priority(self) -> int:
        return -1 if _POOL < self.stream_id <= 2 * _POOL else 0

    @property
    def _as_parameter_(self) -> ctypes.c_void_p:
        return ctypes.c_void_p(self.cuda_stream)

    @property
    def cuda_stream(self) -> int:
        """The number that stands for the stream where CUDA has a pointer."""
        return int(self.stream_id)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, torch.Stream) and self.stream_id == other.stream_id

    def __hash__(self) -> int:
        return hash(("cuda", self.stream_id))

    def __repr__(self) -> str:
        return f"<torch.cuda.Stream device={self.device} cuda_stream={self.cuda_stream:#x}>"


def current() -> torch.Stream:
    """This thread's, on the device that the process uses: another's may be the current one."""
    f = functions()
    return torch.Stream.__new__(Stream, stream_id=f.current_stream(), device_index=f.index(), device_type=_CUDA)


_numbers = itertools.count(66)  # behind torch's pools and the host: no program gets one of these


def hidden(name: str) -> Stream:
    """A stream of ours, which no program can get."""
    made = Stream(stream_id=next(_numbers), device_index=functions().index(), device_type=_CUDA)
    tracing.streams[made.stream_id] = name
    return made


class ExternalStream(Stream):
    """Refused: the simulated GPU knows no streams of other libraries."""

    def __new__(cls, stream_ptr: int, device: Any = None, **kwargs: Any) -> ExternalStream:
        raise RuntimeError(_EXTERNAL)


class _Events(type(torch.Event)):  # type: ignore[misc]
    def __instancecheck__(cls, instance: object) -> bool:
        return type(instance) is torch.Event or type.__instancecheck__(cls, instance)


class Event(torch.Event, metaclass=_Events):
    """A position in a stream. Recording again moves it; its times are virtual.

    Calling it gives a ``torch.Event``: torch's own methods take an event of that very type alone.
    """

    def __new__(  # type: ignore[misc]
        cls, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False, external: bool = False
    ) -> torch.Event:
        if interprocess:
            raise RuntimeError(
                "streamrace: events between processes (CUDA IPC) cannot be simulated: use torch.distributed"
            )
        return torch.Event("cuda", enable_timing=enable_timing, blocking=blocking)


def install() -> None:
    """Give ``torch.Event`` what ``torch.cuda.Event`` has beside: a number where CUDA has a pointer.

    It is 0 before the event is recorded. The attributes of a compiled type cannot be set but in its dictionary.
    """
    (attributes,) = gc.get_referents(torch.Event.__dict__)
    attributes["cuda_event"] = property(lambda event: event.event_id)
    attributes["_as_parameter_"] = property(lambda event: ctypes.c_void_p(event.event_id))
    ctypes.pythonapi.PyType_Modified(ctypes.py_object(torch.Event))
