"""Offers one rank's simulated GPU to the harness that runs a program on it: costs, trace, and observed values.

The program itself uses ``torch.cuda`` only.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from streamrace.device import collectives, costs, cuda, dry, probes, recording, tracing, work
from streamrace.device import timing as deviations
from streamrace.device.hardware import HardwareTiming
from streamrace.device.hardware_costs import NOTHING, clocked
from streamrace.device.library import functions
from streamrace.device.overrides import Override, overrides
from streamrace.device.tokens import Jitter
from streamrace.trace.files import TraceWriter
from streamrace.trace.records import Label, Phase

COMPUTE = "compute"
"""Name of the default stream."""


class Device:
    """The device of this process, from :meth:`begin` to :meth:`finish`. Raises RuntimeError if the process has none.

    In a dry run (:mod:`streamrace.device.dry`) it is the device of the rank that runs, whose tensors hold no values.

    ``timing``: durations; ``rank`` of ``world``; ``devices``: number on one node, of which this rank uses ``index``.
    """

    def __init__(
        self, timing: HardwareTiming, *, rank: int = 0, world: int = 1, devices: int = 1, index: int = 0
    ) -> None:
        self.rank, self._world = rank, world
        self._timing = timing
        self._devices, self._index = devices, index
        self._functions = functions()
        self._named: dict[str, torch.Stream] = {}
        self._writer: TraceWriter | None = None
        self._tracer: tracing.Tracer | None = None

    def begin(
        self,
        file: Path,
        info: dict[str, Any],
        *,
        skipped: tuple[str, ...] = (),
        weightless: str = NOTHING,
        record: bool = False,
    ) -> None:
        """Start timing and tracing work.

        ``file`` takes the trace, which begins with ``info``. ``skipped`` and ``record``: see
        :class:`streamrace.device.tracing.Tracer`. ``weightless``: see
        :class:`streamrace.device.hardware_costs.Clocked`.
        """
        timing = self._timing
        cuda.see(self._devices)
        torch.cuda.set_device(self._index)
        costs.use(clocked(timing, self.rank, weightless=weightless))
        drawn = []
        if timing.jitter:
            drawn = [Jitter(max(1, round(100 * timing.jitter)), timing.seed)]
            self._functions.jitter(drawn[0].percent, timing.seed, self.rank)
        delays = [[op, *delay] for (rank, op), delay in timing.delays.items() if rank == self.rank]
        for op, late, longer in delays:
            self._functions.delay_operation(op, late, longer)
        timed = recording.info(str(deviations.Timing(tuple(drawn))), record=record)
        header = {**info, **timed, "delays": delays, **dry.info()}
        self._writer = TraceWriter(file, rank=self.rank, world=self._world, info=header)
        self._tracer = tracing.Tracer(self._writer.write, skipped=skipped, record=record, packed=True)
        if record:
            probes.begin()
        self.name_stream(torch.cuda.default_stream(), COMPUTE)

    # -- what a rank reports of itself -----------------------------------------------------------------

    @property
    def now(self) -> int:
        """Return the host's clock, in virtual nanoseconds."""
        return int(self._functions.now())

    @property
    def blocked(self) -> int:
        """Return the virtual nanoseconds for which the host was blocked."""
        return int(self._functions.blocked())

    @property
    def operations(self) -> int:
        """Return the number of operations given to the device."""
        return int(self._functions.operations())

    @property
    def flops(self) -> int:
        """Return the floating point operations given to the device (:func:`streamrace.device.costs.flops`)."""
        return int(self._functions.flops())

    def flush(self) -> None:
        """Write the finished part of the trace."""
        assert self._tracer is not None
        self._tracer.flush()

    def finish(self) -> None:
        """Let all work end, and tell the other ranks that this rank issues no more. To be called once."""
        assert self._tracer is not None and self._writer is not None
        collectives.leave()
        if tracing.recording():  # values read by the host; reads of memory are reported by the program's own probes
            self._tracer.flush(everything=True)
            self._writer.write(probes.collected(probes.READ))
        self._tracer.close()
        self._writer.close()

    # -- records in the trace in addition to the work --------------------------------------------------

    def phase(self, step: int, micro_batch: int, name: str) -> None:
        """Record the phase that the host enters."""
        tracing.note(Phase(step, micro_batch, name))

    def label(self, tensor: Tensor, kind: str, name: str) -> None:
        """Record the contents of the tensor's memory."""
        if tensor.is_cuda:
            block, lo, hi = work.place(tensor)
            if hi > lo:
                tracing.note(Label(block, lo, hi, kind, name))

    def label_whole(self, tensor: Tensor, kind: str, name: str) -> None:
        """Record the contents of the whole block of memory that the tensor belongs to."""
        if tensor.is_cuda:
            self.label(tensor.new_empty(0).set_(tensor.untyped_storage()), kind, name)

    # -- observations that take no time and order nothing ----------------------------------------------

    def value(self, tensor: Tensor) -> Tensor:
        """Return the tensor's memory as it is now, as a CPU tensor: its value once all work has ended."""
        return work.alias(tensor.detach())

    def observe(self, tensors: list[Tensor], look: Callable[[list[Tensor]], None], *, finally_: bool = False) -> None:
        """Observe tensors as the current stream would see them now; with ``finally_``, after all streams are done.

        ``look`` is called when that moment has come. A detector on a real device cannot observe values this way; the
        method exists to check detectors that can run there. In a dry run ``look`` is never called.
        """
        if dry.active():
            return
        aliases = [self.value(tensor) for tensor in tensors]
        stream = -1 if finally_ else torch.cuda.current_stream().stream_id
        self._functions.observe(stream, work.ticket(lambda: look(aliases)))

    def probe(
        self, kind: str, name: str, tensor: Tensor, look: Callable[[Tensor], None], *, finally_: bool = False
    ) -> None:
        """Observe a value that training uses, like :meth:`observe`, and record it if the run is recorded."""
        if not tracing.recording():
            self.observe([tensor], lambda values: look(values[0]), finally_=finally_)
            return
        probes.probe(kind, name, tensor, look, finally_=finally_)

    # -- streams, and what orders them -----------------------------------------------------------------

    @property
    def overrides(self) -> list[Override]:
        """Return the list of calls that are replaced (:mod:`streamrace.device.overrides`)."""
        return overrides

    def default_stream(self) -> torch.cuda.Stream:
        return torch.cuda.default_stream()

    def current_stream(self) -> torch.cuda.Stream:
        return torch.cuda.current_stream()

    def synchronize(self) -> None:
        """Block the host until all streams are done."""
        torch.cuda.synchronize()

    def name_stream(self, stream: torch.Stream, name: str) -> None:
        """Name a stream: reports show it and timings stretch it by this name."""
        self._named[name] = stream
        tracing.name_stream(stream.stream_id, name)

    def stream_called(self, name: str) -> Any:
        """Return the stream of this name, or None."""
        return self._named.get(name)
