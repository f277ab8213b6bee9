"""Wraps the methods of torch that order something, or read pinned memory, without any callback of torch's own."""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from streamrace.recorder.recorder import GpuRecorder


class Wrapped:
    """The wrapped methods of one recording: queries of events and streams, and reads past torch's operators."""

    def __init__(self, recorder: GpuRecorder) -> None:
        self._recorder = recorder
        self._undo: list[Callable[[], None]] = []

    def install(self) -> None:
        """Wrap them."""
        import torch

        self._query(torch.Event, lambda event: {"event": event.event_id})
        if torch.cuda.Event.query is not torch.Event.query:
            self._query(torch.cuda.Event, lambda event: {"event": event.cuda_event})
        self._query(torch.cuda.Stream, lambda stream: {"stream": stream.cuda_stream})
        self._emptying(torch.cuda.memory)
        self._emptying(torch.cuda)
        self._reading(torch.Tensor, "tolist", "")
        self._reading(torch.Tensor, "numpy", "numpy")

    def remove(self) -> None:
        """Put the methods back."""
        while self._undo:
            self._undo.pop()()

    def _query(self, kind: Any, which: Callable[[Any], dict[str, int]]) -> None:
        plain, recorder = kind.query, self._recorder

        def query(self: Any) -> bool:
            done = bool(plain(self))
            if done:  # only this answer orders
                recorder.asked(**which(self))
            return done

        self._replace(kind, "query", query, plain)

    def _emptying(self, module: Any) -> None:
        import torch

        plain, recorder = module.empty_cache, self._recorder

        def empty_cache() -> None:
            plain()
            with suppress(RuntimeError):  # a simulated GPU has no snapshot
                recorder.segments([(one["address"], one["total_size"]) for one in torch.cuda.memory_snapshot()])

        self._replace(module, "empty_cache", empty_cache, plain)

    def _reading(self, kind: Any, name: str, how: str) -> None:
        import torch

        plain = getattr(kind, name)

        def read(self: Any, *args: Any, **kwargs: Any) -> Any:
            if self.is_cpu and self.layout is torch.strided:
                torch.ops.streamrace.host_reads(self, f"Tensor.{name}", how)
            return plain(self, *args, **kwargs)

        self._replace(kind, name, read, plain)

    def _replace(self, kind: Any, name: str, made: Any, plain: Any) -> None:
        own = name in vars(kind)
        made.__doc__, made.__name__ = plain.__doc__, name
        _put(kind, name, made)
        self._undo.append(lambda: _put(kind, name, plain) if own else delattr(kind, name))


def _put(kind: Any, name: str, made: Any) -> None:
    """Set a method of a class, also of one that is written in C, for which Python refuses it."""
    try:
        setattr(kind, name, made)
    except TypeError:
        gc.get_referents(kind.__dict__)[0][name] = made  # the dictionary behind the read-only view
        ctypes.pythonapi.PyType_Modified(ctypes.py_object(kind))
