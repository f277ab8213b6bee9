"""Records what a program does on a real GPU, as a trace that the detectors read.

Seen are the operators of all host threads (``at::RecordFunction``), streams, events, waits and memory (c10's
GPUTrace), collectives (c10d's operators), and by wrapped methods of Python what has no callback: queries, and the
host's reads of pinned memory. Times are those of the host at the launch, in nanoseconds since the recording began:
when work ran on the GPU is not known, and no detector asks.
"""

from __future__ import annotations

import ctypes
import hashlib
import itertools
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from streamrace.compiling import BuildError
from streamrace.device.callsites import CallSites
from streamrace.device.taken_words import TakenWords
from streamrace.device.undeclared_writes import HIDDEN
from streamrace.recorder import library
from streamrace.recorder.provocation import Provocation
from streamrace.recorder.unseen import Watch
from streamrace.recorder.wrapped import Wrapped
from streamrace.trace.encoding import Packed
from streamrace.trace.records import HOST_STREAM, End, Group, StreamName, TraceRecord
from streamrace.trace.schema import HOST, WordKind

active: list[GpuRecorder] = []
"""The process's recorder, while it records."""
_sites: list[CallSites] = []  # of the process: the C++ part asks for each stack once


class RecorderError(Exception):
    """A program cannot be recorded here. One sentence, which says what to do."""


class GpuRecorder:
    """Records from :meth:`start` to :meth:`stop`. ``write`` takes finished records.

    ``skipped``: path endings of files whose frames are not part of a stack. The first recorder of a process decides.
    ``provoked``: the stream is held before the work of this place.
    """

    def __init__(
        self,
        write: Callable[[list[TraceRecord | Packed]], None],
        *,
        skipped: tuple[str, ...] = (),
        provoked: Provocation | None = None,
    ) -> None:
        self._write = write
        self._provoked = provoked
        if not _sites:
            _sites.append(CallSites(skipped))
        self._sites = _sites[0]
        self._flushing = threading.Lock()
        self._groups: dict[int, Group] = {}
        self._marks: dict[int, TraceRecord] = {}  # until the C++ part reports their position
        self._numbers = itertools.count()
        self._keep: list[Any] = []  # callbacks that C++ knows by address
        self._wrapped = Wrapped(self)
        self._watch = Watch(self)
        self._problem: BaseException | None = None

    def start(self) -> None:
        """Begin to record. Raise :class:`RecorderError`."""
        if active:
            raise RecorderError("this process is being recorded already: end that recording first")
        try:
            self._f = f = library.functions()
        except BuildError as problem:
            raise RecorderError(str(problem)) from None
        import torch

        for name, hidden in HIDDEN.items():
            torch.ops.streamrace.hides(name, list(hidden.arguments), hidden.when)
        self._keep = [
            library.Reported(self._sites.reported),
            library.Define(self._define),
            library.Backward(self._sites.backward),
            library.HandOn(lambda: self._hand_on()),
            library.StreamHandle(_handle),
            library.GroupNumber(self._group),
            library.GlobalRank(_global_rank),
        ]
        self._held = library.HandOn(self._hold)
        if f.begin(*self._keep):
            raise RecorderError(
                "another tool follows torch's streams and memory in this process (TORCH_CUDA_SANITIZER?): "
                "switch it off, as only one can"
            )
        f.nccl_records(_nccl_records())
        self._sites.again()
        active.append(self)
        self._wrapped.install()
        self._watch.begin()

    def stop(self, *, done: bool = True) -> None:
        """End the recording and write the rest. Not ``done``: the program failed, so the trace has no end.

        Raise :class:`RecorderError` if the trace could not be written.
        """
        self._watch.end()
        self._wrapped.remove()
        now = self._f.now()
        self._f.end()
        active.remove(self)
        self._hand_on(rest=True)
        if self._problem is None and done:
            try:
                self._write([End(now)])
            except OSError as problem:
                self._problem = problem
        if self._problem is not None:
            raise RecorderError(f"the trace cannot be written: {self._problem}") from self._problem

    def abandon(self) -> None:
        """Stop without a word, in a fork of the recorded process: what it does is not the process's."""
        self._f.abandon()
        active.clear()

    def note(self, record: TraceRecord) -> None:
        """Write a record at this position of the trace."""
        number = next(self._numbers)
        self._marks[number] = record
        self._f.mark(number)

    def call_site(self) -> int:
        """Return the number of the calling stack."""
        return int(self._f.call_site())

    def asked(self, *, event: int = 0, stream: int = 0) -> None:
        """Record that the program asked an event, or else a stream, and that it was done."""
        self._f.asked(event, stream)

    def segments(self, left: Sequence[tuple[int, int]]) -> None:
        """Record that the allocator has given memory back: the segments that are ``left``, by address and bytes."""
        numbers = [number for segment in left for number in segment]
        self._f.segments((ctypes.c_int64 * len(numbers))(*numbers), len(left))

    def captures(self, more: int) -> None:
        """Note that a capture of a CUDA graph begins (1) or has ended (-1): what is captured is not executed."""
        self._f.captures(more)

    @contextmanager
    def told(
        self, kind: str, reads: Iterable[Any], writes: Iterable[Any], members: Sequence[int], origin: Sequence[int],
        root: int, stream: int,
    ) -> Iterator[None]:  # fmt: skip
        """Record a collective of a backend whose collectives are no operators of c10d; in the block it is issued.

        ``members``: global ranks. ``origin``: of the group in which two of its ranks send. ``stream``: its handle.
        """
        import torch

        number = self._numbered(f"{members}", tuple(members), tuple(origin))
        torch.ops.streamrace.collective(kind, [*reads], [*writes], number, root, stream)
        self._f.quiet(1)
        try:
            yield
        finally:
            self._f.quiet(0)

    @property
    def used_several(self) -> bool:
        """Check whether the process used more than one GPU."""
        return bool(self._f.used_several())

    def _define(self, codes: Any, instructions: Any, count: int) -> int:
        number = self._sites.define(codes, instructions, count)
        if self._provoked is not None and self._provoked.is_at(self._sites.frames(number)):
            self._f.hold(number, self._held)
        return number

    def _hold(self) -> None:
        """Hold the current stream. The caller is C++."""
        assert self._provoked is not None
        self._provoked.hold()

    def _hand_on(self, *, rest: bool = False) -> None:
        """Write finished records while the program runs, in any of its threads. ``rest``: after another that does."""
        if self._flushing.acquire(blocking=rest):
            try:
                self._flush()
            except BaseException as problem:  # the caller is C++: the program goes on, and the end raises it
                self._problem = self._problem or problem
            finally:
                self._flushing.release()

    def _flush(self) -> None:
        batch = TakenWords(self._f.take, everything=True)  # no time is waited for
        stacks, self._sites.fresh = self._sites.fresh, []
        records = [*stacks, *batch.records(self._f.packed, self._record)]
        if records and self._problem is None:
            self._write(records)

    def _record(self, kind: int, words: Sequence[int]) -> TraceRecord | None:
        if kind == WordKind.GROUP:
            return self._groups.get(words[0])
        if kind == WordKind.STREAM_NAME:
            number = words[0]
            return StreamName(number, HOST_STREAM if number == HOST else f"stream {number}" if number else "default")
        return self._marks.pop(words[0], None) if kind == WordKind.MARK else None

    def _group(self, name: bytes, source: int, target: int) -> int:
        """Return the number of the group, or of the pair of its members that send: equal on all ranks."""
        ranks = _ranks(name.decode())
        pair = (ranks[source], ranks[target]) if source >= 0 and target >= 0 else ()
        return self._numbered(f"{name.decode()}:{ranks}:{pair}", pair or ranks, ranks if pair else ())

    def _numbered(self, name: str, members: tuple[int, ...], origin: tuple[int, ...]) -> int:
        number = int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest()) >> 1
        self._groups.setdefault(number, Group(number, members, origin))
        return number


def _forked() -> None:
    for recorder in active[:]:
        recorder.abandon()


os.register_at_fork(after_in_child=_forked)


def _nccl_records() -> bool:
    """Check whether ProcessGroupNCCL calls record_stream: before torch 2.8 unless told otherwise, then the reverse."""
    import torch

    if setting := os.environ.get("TORCH_NCCL_AVOID_RECORD_STREAMS"):
        return setting.lower() in ("0", "n", "no", "f", "false")
    return tuple(map(int, torch.__version__.split(".")[:2])) < (2, 8)


def _ranks(name: str) -> tuple[int, ...]:
    from torch.distributed import distributed_c10d as c10d

    resolve: Any = c10d._resolve_process_group
    return tuple(c10d.get_process_group_ranks(resolve(name)))


def _global_rank(name: bytes, member: int) -> int:
    return _ranks(name.decode())[member]


def _handle(stream: int, device: int) -> int:
    """Return CUDA's handle of a stream that torch knows by a number of its own."""
    import torch

    kind: Any = torch._C._autograd.DeviceType.CUDA
    return int(torch.cuda.Stream(stream_id=stream, device_index=device, device_type=int(kind)).cuda_stream)
