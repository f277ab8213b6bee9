"""Provides streams wherever training runs: of a GPU, of the simulated one, or none on a plain CPU.

A *lane* is a stream with a purpose. The engine assigns work to lanes and orders lanes by waits; without streams, work
is done when it is issued, in an order that respects every wait, and waits have no further effect.

Every wait has a name (:mod:`streamrace.scenarios.sharding.synchronisations`) by which it can be removed: so the
detectors and the fuzzer can show its purpose.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from streamrace.device.device import Device
from streamrace.scenarios.sharding.strategy import ShardingError
from streamrace.scenarios.sharding.synchronisations import Sync

Lane = Any  # a stream; None without streams
Mark = Any  # a position in a lane


class Streams(Protocol):
    """Stream operations, on a GPU, on the simulated GPU, or on a plain CPU without streams."""

    device: torch.device

    def new(self, name: str) -> Lane: ...

    def current(self) -> Lane: ...

    def on(self, lane: Lane) -> AbstractContextManager[Any]:
        """Issue the work inside to ``lane``."""
        ...

    def mark(self, lane: Lane) -> Mark:
        """Return the current position of ``lane``."""
        ...

    def wait(self, lane: Lane, mark: Mark) -> None:
        """Order later work of ``lane`` after ``mark``. Does not block the host."""
        ...

    def keep(self, tensor: Tensor, lane: Lane) -> None:
        """Keep the tensor's memory from reuse until the work issued so far to ``lane`` is done."""
        ...

    def label(self, tensor: Tensor, kind: str, name: str) -> None:
        """Name the contents of the tensor's memory in the trace, if there is a trace."""
        ...


class NoStreams:
    """A plain CPU: work is done when it is issued."""

    device = torch.device("cpu")

    def new(self, name: str) -> Lane:
        return None

    def current(self) -> Lane:
        return None

    def on(self, lane: Lane) -> AbstractContextManager[Any]:
        return nullcontext()

    def mark(self, lane: Lane) -> Mark:
        return None

    def wait(self, lane: Lane, mark: Mark) -> None: ...

    def keep(self, tensor: Tensor, lane: Lane) -> None: ...

    def label(self, tensor: Tensor, kind: str, name: str) -> None: ...


class TracedStreams:
    """The simulated GPU's streams; its trace names streams and the contents of memory."""

    def __init__(self, device: Device) -> None:
        self.device = torch.device("cuda", torch.cuda.current_device())
        self._gpu = device

    def new(self, name: str) -> Lane:
        stream = torch.cuda.Stream(self.device)
        self._gpu.name_stream(stream, name)
        return stream

    def current(self) -> Lane:
        return torch.cuda.current_stream(self.device)

    @contextmanager
    def on(self, lane: Lane) -> Iterator[None]:
        with torch.cuda.stream(lane):
            yield

    def mark(self, lane: Lane) -> Mark:
        return lane.record_event()

    def wait(self, lane: Lane, mark: Mark) -> None:
        lane.wait_event(mark)

    def keep(self, tensor: Tensor, lane: Lane) -> None:
        tensor.record_stream(lane)

    def label(self, tensor: Tensor, kind: str, name: str) -> None:
        self._gpu.label(tensor, kind, name)


class LaneOrder:
    """Orders lanes by named waits; ``without``: the names of the removed waits.

    Raises :class:`ShardingError` for a removed wait without streams.
    """

    def __init__(self, streams: Streams, without: Collection[Sync] = ()) -> None:
        if without and isinstance(streams, NoStreams):
            raise ShardingError(
                f"there is no synchronisation '{min(without)}' to take away on a plain CPU, which has no streams: run "
                "it on the simulated GPU or on a real one"
            )
        self.streams = streams
        self._without = frozenset(without)

    def mark(self) -> Mark:
        """Return the position of the current lane."""
        return self.streams.mark(self.streams.current())

    def wait(self, name: Sync, mark: Mark) -> None:
        """Order later work of the current lane after ``mark``."""
        if name not in self._without:
            self.streams.wait(self.streams.current(), mark)

    def arrive(self, name: Sync, *works: dist.Work | None) -> None:
        """Order later work of the current lane after these collectives; on a plain CPU the host waits for them."""
        if name not in self._without:
            for work in works:
                if work is not None:
                    work.wait()
