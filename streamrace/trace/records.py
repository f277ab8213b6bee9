"""The record of a run: one file per rank, the only thing detectors and reports read.

A trace is what the *host* did, in the order in which it did it: launches with the memory they touch, records, waits,
synchronisations, allocations and frees. When the work ran stands in the launches (``start``, ``end``); it is one timing
among many, and happens-before ignores it.

Everything is reduced to four ordering primitives, so that a detector needs no more than these:

* :class:`Launch` and :class:`Collective`: host to stream,
* :class:`Record` makes a *marker* of a stream's position, :class:`Wait` lets another stream wait for it: stream to
  stream. ``wait_stream`` is both; an event recorded again makes a new marker, so a wait names what it really waits for,
* :class:`HostWait`: stream to host (``synchronize``, a device-to-host read, a ``query()`` that answered True).

A trace that was *recorded to be replayed* also holds what the work was: :class:`Call` and :class:`Transfer` (operators
with their arguments), :class:`Initial` (memory that the host brought along), :class:`Probe` and :class:`Probed` (values
that training used). :mod:`replay` reads these; detectors pass over them.
Times are integers, virtual nanoseconds. Memory is named by *block* (an allocation, numbered by the rank, never used
twice) and byte offsets within it.
On disk: msgpack, one array per record, the first element says which. Nothing is ever evaluated.
"""

from __future__ import annotations

from typing import Any, NamedTuple

FORMAT = "stream-race-trace"
NOBODY = -1
LOOK, WROTE, NOTHING = "look", "wrote", "nothing"  # functions of a Call that are no operators
VERSION = 3
LEFT_OUT = "without "  # in front of the operation of a call that was not made
READ = (2, 3)  # 2 had no Reuse, no Export, and no free that touches nothing


class TraceError(Exception):
    """The file is not a trace, is of an unknown version, or is damaged."""


class Access(NamedTuple):
    """Bytes ``lo`` (inclusive) to ``hi`` (exclusive) of a block.

    ``layout`` is None when every byte of the range is touched; else ``(itemsize, sizes, strides)``, strides in bytes:
    elements start at ``lo + sum(i_k * strides[k])``. A reader gives accesses back as plain tuples (they are many).
    """

    block: int
    lo: int
    hi: int
    layout: tuple[int, tuple[int, ...], tuple[int, ...]] | None = None


class Frame(NamedTuple):
    """A place in source code."""

    file: str
    line: int
    function: str


class Begin(NamedTuple):
    """First record of each file. :func:`begin` makes it."""

    format: str
    version: int
    rank: int
    world: int
    info: dict[str, Any]


def begin(rank: int, world: int, info: dict[str, Any] | None = None) -> Begin:
    """The first record of a trace as it is written today: the one place that knows its version."""
    return Begin(FORMAT, VERSION, rank, world, info or {})


class Stack(NamedTuple):
    """Defines stack ``id``: the calls that led to a record, innermost first, torch's own left out."""

    id: int
    frames: tuple[Frame, ...]


class StreamName(NamedTuple):
    """Stream ``stream`` of this rank is called ``name``. A later one replaces an earlier one."""

    stream: int
    name: str


HOST_STREAM = "host"  # no stream: it stands for what the host itself does to pinned memory


class Group(NamedTuple):
    """Process group ``group`` has these global ranks, in group order. Ids agree between ranks.

    Two ranks that send are a group of their own: ``origin`` are the ranks of the process group from which they do
    (none: it is a process group itself, or the trace is older than this field).
    """

    group: int
    ranks: tuple[int, ...]
    origin: tuple[int, ...] = ()


class Phase(NamedTuple):
    """What the host does from here on: ``name`` is init, forward, backward or step."""

    step: int
    micro_batch: int
    name: str


class Alloc(NamedTuple):
    """A block comes into being; ``stream`` was current, the allocator will reuse it in that stream's order.

    ``dtype`` is what the block was made for: it decides what poison is. ``stack``: of what allocates (-1: not known).
    """

    block: int
    nbytes: int
    stream: int
    time: int
    dtype: str = "uint8"
    stack: int = -1


class Free(NamedTuple):
    """The host dropped its last reference: from now on the allocator may hand the memory out again.

    ``poisoned``: a stream that no ``record_stream`` names was given work on it, so it was poisoned.
    ``quiet``: it touched nothing, and who gets the memory is recorded by :class:`Reuse`.
    """

    block: int
    time: int
    poisoned: bool = False
    quiet: bool = False


class Reuse(NamedTuple):
    """Bytes ``lo`` to ``hi`` of the new ``block`` were those of the freed ``former`` from ``start`` on.

    ``stack``: of the allocation. ``last``: nothing of ``former`` is left to hand out. ``block`` NOBODY: only that.
    """

    block: int
    former: int
    lo: int
    hi: int
    start: int
    stack: int
    last: bool


class Export(NamedTuple):
    """The program got a block's address (``how``: numpy, data_ptr): what it does is not seen. Or it gave it up."""

    block: int
    how: str
    stack: int
    time: int


class RecordStream(NamedTuple):
    """``tensor.record_stream``: reuse of the block waits for ``stream``'s position at the free."""

    block: int
    stream: int


class Label(NamedTuple):
    """Bytes of a block belong to parameter ``name``; ``kind`` is primary, secondary, gathered, ...

    May come later than the accesses it explains.
    """

    block: int
    lo: int
    hi: int
    kind: str
    name: str


class Launch(NamedTuple):
    """A kernel given to a stream. It reads and writes at ``end``.

    ``nominal``: nanoseconds that the kernel takes by itself, before the timing stretches it (-1: not known).
    """

    op: int
    stream: int
    kernel: str
    reads: tuple[Access, ...]
    writes: tuple[Access, ...]
    stack: int
    issued: int
    start: int
    end: int
    nominal: int = -1


class Collective(NamedTuple):
    """One rank's part of a collective, on its group's stream. It reads at ``start``, writes at ``end``.

    The wait of the group's stream for the issuing stream, and of the current stream in ``Work.wait()``, are records of
    their own. ``number`` counts the collectives of ``group``, the same on all its ranks. ``root`` is a global rank
    (broadcast: the source; reduce: the destination), or -1 when every output depends on every input. ``issuer``: the
    stream that was current (-1: not known). ``nominal``: the bytes of the whole that is exchanged, from which its
    duration follows (-1: not known). ``alone``: nanoseconds on this rank when nothing delays it (-1: not recorded);
    ``link``: what carries it, as a timing names it.
    """

    op: int
    stream: int
    kernel: str
    reads: tuple[Access, ...]
    writes: tuple[Access, ...]
    stack: int
    issued: int
    start: int
    end: int
    group: int
    number: int
    root: int
    issuer: int = -1
    nominal: int = -1
    alone: float = -1.0
    link: str = ""


class Record(NamedTuple):
    """Marker ``marker`` stands for all work given to ``stream`` so far. Markers are never reused."""

    marker: int
    stream: int


class Wait(NamedTuple):
    """All later work of ``stream`` comes after ``marker``."""

    stream: int
    marker: int
    stack: int


class HostWait(NamedTuple):
    """All later launches come after ``marker``. ``how``: synchronize, read, copy (to the device) or query.

    The host's clock stood at ``began`` (-1: not known) when it began to wait, and at ``time`` afterwards.
    """

    marker: int
    how: str
    stack: int
    time: int
    began: int = -1


class HostStep(NamedTuple):
    """The host's clock went on to ``time`` without ordering anything. ``how``: asked (a ``query()`` of ``marker``, -1:
    not known of which, that answered False), or met (the host waited for all streams, or for ``stream``, where no
    program may rely on it: while a process group was made).
    """

    how: str
    time: int
    stream: int = -1
    marker: int = -1


View = tuple[int, str, tuple[int, ...], tuple[int, ...], int, bool, bool]
"""A tensor: block, dtype, shape, strides and offset in elements, whether it stands for conjugates, for negatives."""


class Call(NamedTuple):
    """What launch ``op`` computes: torch operator ``function`` with its arguments (:mod:`streamrace.device.values`).

    ``outputs`` are the new tensors, ``places`` where among the returned values they stand, ``dtype`` is torch's
    default one. ``random`` is the state of the random generator where the operator draws. ``host``: the operator
    was run by the host, after it had waited for the stream; ``result`` is what it learned. No operators are "" (the
    host read the memory itself), :data:`LOOK` (the host gets a copy, of this dtype and shape), :data:`WROTE` (the host
    wrote the bytes ``result``) and :data:`NOTHING` (it was done when it was issued).
    """

    op: int
    function: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    outputs: tuple[View, ...]
    places: tuple[int, ...]
    dtype: str
    random: bytes | None = None
    host: bool = False
    result: Any = None


class Transfer(NamedTuple):
    """What collective ``op`` exchanges. ``scale``: what each rank's numbers are multiplied by before the sum."""

    op: int
    inputs: tuple[View, ...]
    outputs: tuple[View, ...]
    reduction: str = ""
    splits: tuple[tuple[int, ...], tuple[int, ...]] | None = None
    scale: float | None = None


class Initial(NamedTuple):
    """A block of the host's own memory, with what stood in it when the device first saw it."""

    block: int
    data: bytes


class Probe(NamedTuple):
    """A value that training uses at this point of the current stream (``final``: after all streams).

    ``kind``: loss, parameter or final; :mod:`streamrace.device.probes` has its own. Takes no time and orders nothing.
    """

    probe: int
    kind: str
    name: str
    view: View
    stream: int


class Probed(NamedTuple):
    """The CRC-32 of a :class:`Probe`'s bytes in row order, taken when the value was there."""

    probe: int
    checksum: int


class End(NamedTuple):
    """Last record of a trace that was closed in good order."""

    time: int


class Onward(NamedTuple):
    """What follows stands in file ``part``, until it was judged (:mod:`streamrace.trace.parts`).

    ``operations``: launches and collectives of this rank up to here; ``op``: the last one's number (-1: there is none).
    """

    part: int
    operations: int
    op: int

    def sentence(self) -> str:
        """What is there of the trace, and what to do: without a full stop."""
        return (
            f"it holds the first {self.operations:,} operations of its rank, and what came then was judged and not "
            "kept. Run the program again with 'streamrace check --keep-trace 0', which keeps all"
        )


class Seal(NamedTuple):
    """Behind :class:`streamrace.trace.records.End`: the SHA-256 of all bytes of the file before this record."""

    digest: bytes


class Unrepeatable(NamedTuple):
    """The recording cannot be replayed, and why."""

    reason: str


class Asked(NamedTuple):
    """The program makes a call that orders something, at this place: what it gave the device is recorded behind this.

    ``operation``: one of :data:`streamrace.device.overrides.OPERATIONS`, behind :data:`LEFT_OUT` where the call was
    left out, or empty: a library of the device's own asked. ``block``: of ``record_stream``, which is recorded once for
    a block and a ``stream``, however many ask. Only written where the run was to tell its waits apart
    (:func:`streamrace.device.overrides.tell`).
    """

    operation: str
    file: str
    line: int
    function: str
    stream: int
    block: int = -1


TraceRecord = (
    Begin | Stack | StreamName | Group | Phase | Alloc | Free | RecordStream | Label | Launch
    | Collective | Record | Wait | HostWait | End | HostStep | Call | Transfer | Initial | Probe | Probed | Unrepeatable
    | Seal | Reuse | Export | Asked | Onward
)  # fmt: skip
