"""The simulated accelerator of one rank: puts timeline, memory, kernels and journal together.

Every call that orders something can be *ruled*: a :class:`simgpu.rules.Rule` names the place in the program
(function and file) and says what happens there instead. That is how a single synchronisation is
taken out of code that is not edited.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from repro.accelerator.bypasses import replacements
from repro.accelerator.callsite import CallSites
from repro.accelerator.costs import Clock
from repro.accelerator.exchange import Alone
from repro.accelerator.journal import Journal
from repro.accelerator.kernels import Kernels
from repro.accelerator.memory import Block, Memory, poison
from repro.accelerator.recorder import Recorder
from repro.accelerator.streams import Event, Stream, activate, active
from repro.accelerator.timeline import Effect, Exchange, Instant, Timeline
from repro.trace import (
    Access,
    Alloc,
    End,
    Free,
    HostStep,
    HostWait,
    Label,
    Phase,
    Record,
    RecordStream,
    TraceRecord,
    Wait,
)
from repro.values import dtype_name
from simgpu.rules import Rule

__all__ = ["ASKING_NS", "Device", "Event", "Rule", "Stream", "active"]

ASKING_NS = 1000  # what a query() costs the host


class Device:
    """One rank's accelerator. Use it as a context manager: inside, tensors live on it.

    ``write`` gets finished trace records; without it they are dropped. ``record``: write down what each
    piece of work was as well, so that the run can be replayed.
    """

    def __init__(
        self,
        clock: Clock,
        *,
        rank: int = 0,
        exchange: Exchange | None = None,
        write: Callable[[list[TraceRecord]], None] | None = None,
        skipped_files: tuple[str, ...] = (),
        record: bool = False,
    ) -> None:
        self.rank = rank
        self.timing = clock
        self.exchange: Exchange = exchange or Alone()
        self.group_type: Any = None  # of process groups, where it is not the usual one
        self.timeline = Timeline(rank, self.exchange)
        self.journal = Journal(write or (lambda records: None))
        self.sites = CallSites(self.journal.note, skipped_files)
        self.memory = self._memory()
        self.recorder = Recorder(self.journal, self.memory) if record else None
        self.rules: list[Rule] = []
        self.weightless = "\0"  # kernels whose name begins so take no time: what is left of them is order
        self.streams: list[Stream] = []
        self.unwaited: dict[Any, None] = {}  # collectives that hold their tensors until somebody waits, as issued
        self.flops = 0  # floating point operations issued: matrix products and attention, as torch counts them
        self.host_blocked = 0  # virtual nanoseconds that the host stood still
        self._markers = 0
        self._quiet = 0
        self._ruled: dict[tuple[str, int], Rule | None] = {}
        self._mode = self._kernels()
        default = Stream(self)
        default.rename("compute")
        self.current = default.id

    def _memory(self) -> Memory:
        return Memory(self._allocated, self._freed)

    def _kernels(self) -> Kernels:
        return Kernels(self)

    # Under the names of :class:`simgpu.device.Device`.

    @property
    def now(self) -> int:
        return self.timeline.now

    @property
    def blocked(self) -> int:
        return self.host_blocked

    @property
    def operations(self) -> int:
        return self.journal.ops

    def flush(self) -> None:
        self.journal.flush()

    def value(self, tensor: Tensor) -> Tensor:
        return tensor

    def stream_called(self, name: str) -> Stream | None:
        return next((one for one in self.streams if one.name == name), None)

    def name_stream(self, stream: Stream, name: str) -> None:
        stream.rename(name)

    def label_whole(self, tensor: Tensor, kind: str, name: str) -> None:
        """What stands in the whole block of memory that the tensor is of."""
        block = self.memory.block_of(tensor)
        if block.stream >= 0:
            self.journal.note(Label(block.id, 0, block.nbytes, kind, name))

    def stand_in(self, tensor: Tensor, *, printed: bool) -> str | None:
        """What the host gets of a tensor instead of its memory, having waited. None: the memory."""
        return None

    # -- streams ----------------------------------------------------------------------------------

    def current_stream(self) -> Stream:
        return self.streams[self.current]

    def default_stream(self) -> Stream:
        return self.streams[0]

    @contextmanager
    def stream(self, stream: Stream | None) -> Iterator[None]:
        """Work issued inside goes to ``stream``."""
        if stream is None:
            yield
            return
        before, self.current = self.current, stream.id
        try:
            yield
        finally:
            self.current = before

    # -- ordering ---------------------------------------------------------------------------------

    def record(self, event: Event, stream: Stream) -> None:
        self._markers += 1
        event.marker = self._markers
        event.instant = self.timeline.position(stream.id).joined(Instant(self.timeline.now))
        self.journal.note(Record(event.marker, stream.id))

    def wait(self, stream: Stream, event: Event, stack: int) -> None:
        if event.instant is not None:
            self.timeline.wait(stream.id, event.instant)
            self.journal.note(Wait(stream.id, event.marker, stack))

    def host_wait(self, event: Event, how: str, stack: int) -> None:
        """Block the host until the event has passed."""
        assert event.instant is not None
        timeline = self.timeline
        timeline.now += self.timing.synchronize_ns
        before = timeline.now
        with self.quiet():
            timeline.synchronize(event.instant)
        self.host_blocked += timeline.now - before
        self.journal.note(HostWait(event.marker, how, stack, timeline.now, before))

    def query(self, event: Event) -> bool:
        if event.instant is None:
            return True
        self.timeline.now += ASKING_NS  # asking takes time too, or a host that asks in a loop would never get on
        with self.quiet():
            passed = self.timeline.passed(event.instant)
        now = self.timeline.now
        if passed:
            self.journal.note(HostWait(event.marker, "query", self.sites.capture(), now, now))
        else:
            self.journal.note(HostStep("asked", now))
        return passed

    def synchronize_stream(self, stream: Stream, operation: str) -> None:
        stack = self.sites.capture()
        if not self.ruled(operation, stack, stream):
            event = Event()
            self.record(event, stream)
            self.host_wait(event, "synchronize", stack)

    def synchronize_current(self, how: str) -> None:
        """The host reads from the device: it waits for the current stream."""
        event = Event()
        self.record(event, self.current_stream())
        self.host_wait(event, how, self.sites.capture())

    def synchronize(self) -> None:
        """Block the host until all streams are done."""
        stack = self.sites.capture()
        if not self.ruled("device.synchronize", stack, self.current_stream()):
            self.synchronize_all(stack)

    def synchronize_all(self, stack: int) -> None:
        for stream in list(self.streams):
            event = Event()
            self.record(event, stream)
            self.host_wait(event, "synchronize", stack)
        for work in self.unwaited:
            work.release()
        self.unwaited.clear()

    def ruled(self, operation: str, stack: int, stream: Stream) -> bool:
        """Does a rule stand at this place? Then it was done instead of the call."""
        if not self.rules:
            return False
        key = (operation, stack)
        if key not in self._ruled:
            frames = self.sites.frames(stack)
            self._ruled[key] = next(
                (
                    rule
                    for rule in self.rules
                    if rule.operation == operation
                    and frames
                    and frames[0].function.endswith(rule.function)
                    and frames[0].file.endswith(rule.file)
                    and rule.line in (0, frames[0].line)
                ),
                None,
            )
        rule = self._ruled[key]
        if rule is None:
            return False
        rule.instead(stream)
        return True

    # -- work -------------------------------------------------------------------------------------

    def launch(
        self,
        kernel: str,
        reads: list[Access],
        writes: list[Access],
        blocks: list[Block],
        duration: int,
        effect: Effect | None,
    ) -> None:
        """Give a kernel to the current stream."""
        stream, timeline = self.current, self.timeline
        self.use(blocks, stream)
        nominal = duration
        if kernel.startswith(self.weightless):
            duration = 0
        else:
            timeline.now += self.timing.launch_ns
            duration = self.timing.stretched(duration, kernel, self.streams[stream].name)
        if self.timing.delays:
            duration += sum(self.timing.delays.get(self.journal.ops + 1, ()))
        work = timeline.launch(stream, duration, effect)
        self.journal.issued(work, stream, kernel, reads, writes, self.sites.capture(), nominal)

    def observe(self, tensors: list[Tensor], look: Callable[[list[Tensor]], None]) -> None:
        """Look at tensors as the current stream would see them now: no work, no time, no ordering.

        ``look`` is called when that moment's effects are taken. A detector built on a real device
        cannot do this; it exists to check those that can.
        """
        with self.quiet():
            aliases = [self.memory.alias(tensor, self.memory.block_of(tensor)) for tensor in tensors]
        self.timeline.shadow(self.timeline.position(self.current), lambda: look(aliases))

    def sight(
        self, kind: str, name: str, tensor: Tensor, look: Callable[[Tensor], None], *, finally_: bool = False
    ) -> None:
        """Look at a value that training uses, as :meth:`observe` does, and record it where the run is recorded.

        ``finally_``: as it is when all streams are done, not only the current one.
        """
        with self.quiet():
            alias = self.memory.alias(tensor, self.memory.block_of(tensor))
        where = -1 if finally_ else self.current
        number = -1 if self.recorder is None else self.recorder.sight(kind, name, tensor, where)
        instant = self.timeline.position(self.current)
        if finally_:
            for stream in range(len(self.streams)):
                instant = instant.joined(self.timeline.position(stream))

        def see() -> None:
            if self.recorder is not None:
                self.recorder.seen(number, alias)
            look(alias)

        self.timeline.shadow(instant, see)

    def use(self, blocks: list[Block], stream: int) -> None:
        for block in blocks:
            if block.stream != stream and block.stream >= 0:
                if block.used_by is None:
                    block.used_by = set()
                block.used_by.add(stream)

    @contextmanager
    def quiet(self) -> Iterator[None]:
        """Inside, tensors are plain CPU tensors: the device's own work, issued to no stream.

        Nothing of the program's own modes applies there: no autocast, no autograd (and none of its
        checks: tensors made in inference mode may be written). Gradients count as wanted, as some
        kernels then return more (``mkldnn_rnn_layer``), and what is not wanted is not taken.
        """
        self._quiet += 1
        try:
            with (
                torch._C._DisableTorchDispatch(),
                torch._C._AutoDispatchBelowADInplaceOrView(),
                torch._C._ExcludeDispatchKeyGuard(_AUTOCAST),
                torch.enable_grad(),
            ):
                yield
        finally:
            self._quiet -= 1

    # -- memory -----------------------------------------------------------------------------------

    def record_stream(self, tensor: Tensor, stream: Stream) -> None:
        """``tensor.record_stream(stream)``: the memory is not handed out again before ``stream`` gets there."""
        block = self.memory.block_of(tensor)
        if block.recorded is None:
            block.recorded = set()
        if stream.id not in block.recorded:  # DeepSpeed says it of every part of a block
            block.recorded.add(stream.id)
            self.journal.note(RecordStream(block.id, stream.id))

    def pin(self, tensor: Tensor) -> Tensor:
        """Make it page-locked memory of the host: the device's copies arrive there, the host reads without waiting.

        As with CUDA, nothing tells the host that they have arrived; it has to know, or to look for a mark.
        """
        self.memory.block_of(tensor).pinned = True
        return tensor

    def label(self, tensor: Tensor, kind: str, name: str) -> None:
        """Tell the trace what stands in the tensor's memory."""
        block = self.memory.block_of(tensor)
        access = self.memory.access(tensor, block)
        if access is not None:
            self.journal.note(Label(block.id, access.lo, access.hi, kind, name))

    def _allocated(self, block: Block, dtype: torch.dtype) -> None:
        self.journal.note(Alloc(block.id, block.nbytes, block.stream, self.timeline.now, dtype_name(dtype)))

    def _freed(self, block: Block) -> None:
        if block.stream < 0:
            return  # the host's own memory: not the device allocator's affair
        recorded = block.recorded or set()
        base = block.base
        poisoned = bool(block.used_by and block.used_by - recorded)
        self.journal.note(Free(block.id, self.timeline.now, poisoned))
        if poisoned and base is not None:
            # The next owner's first write would come here. In an ordered program nobody reads any more.
            instant = self.timeline.position(block.stream).joined(Instant(self.timeline.now))
            for stream in sorted(recorded):
                instant = instant.joined(self.timeline.position(stream))
            self.timeline.shadow(instant, lambda: poison(base))

    # -- life -------------------------------------------------------------------------------------

    def phase(self, step: int, micro_batch: int, name: str) -> None:
        """What the host does from here on; for the trace only."""
        self.journal.note(Phase(step, micro_batch, name))

    def finish(self) -> None:
        """Let everything end, and tell the other ranks that nothing more comes from this one."""
        with self.quiet():
            self.timeline.drain()
        self.exchange.promise(1 << 62)
        self.journal.note(End(self.timeline.now))
        self.journal.flush(everything=True)

    def __enter__(self) -> Device:
        activate(self)
        self._patches = list(replacements(self))
        self._mode.__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: Any) -> None:
        self._mode.__exit__(*error)  # type: ignore[no-untyped-call]
        for owner, name, original in self._patches:
            setattr(owner, name, original)
        activate(None)


_AUTOCAST = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU)
