"""Defines the records of a trace: one file per rank, the only input of detectors and reports.

A trace holds the actions of the *host*, in their order: launches with the memory they touch, records, waits,
synchronisations, allocations and frees. The times at which work ran are fields of the launches (``start``, ``end``);
they are one timing among many, and happens-before ignores them.

Everything is reduced to four ordering primitives, so that a detector needs no others:

* :class:`Launch` and :class:`Collective`: host to stream,
* :class:`Record` makes a *marker* of a stream's position, :class:`Wait` lets another stream wait for it: stream to
  stream. ``wait_stream`` is both; an event recorded again makes a new marker, so a wait names the position it waits
  for,
* :class:`HostWait`: stream to host (``synchronize``, a device-to-host read, a ``query()`` that answered True).

A trace that was *recorded to be replayed* also holds the work itself: :class:`Call` and :class:`Transfer` (operators
with their arguments), :class:`Initial` (memory that the host provided), :class:`Probe` and :class:`Probed` (values that
training used). :mod:`streamrace.replay` reads these; detectors skip them.

Times are integers, virtual nanoseconds. Memory is named by *block* (an allocation, numbered by the rank, never used
twice) and byte offsets within it. On disk: msgpack, one array per record, whose first element is the record's number.
Nothing is ever evaluated.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from streamrace.trace.graph_records import Dangling, GraphPart, KeptOutput, PoolPart, Replay

FORMAT = "stream-race-trace"
NOBODY = -1
LOOK, WROTE, NOTHING = "look", "wrote", "nothing"  # functions of a Call that are not operators
VERSION = 6
LEFT_OUT = "without "  # prefix of the operation of a call that was left out
READ = (2, 3, 4, 5, 6)  # 2 had no Reuse, no Export, and no free that touches nothing; 3 no calls of collectives; 4 no
# recordings of a real GPU; 5 no time of the program's own functions


class TraceError(Exception):
    """The file is not a trace, is of an unknown version, or is damaged."""


class Access(NamedTuple):
    """Bytes ``lo`` (inclusive) to ``hi`` (exclusive) of a block.

    ``layout`` is None when every byte of the range is touched; else ``(itemsize, sizes, strides)``, strides in bytes:
    elements start at ``lo + sum(i_k * strides[k])``. A reader returns accesses as plain tuples, for speed.
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
    """First record of each file, built by :func:`begin`."""

    format: str
    version: int
    rank: int
    world: int
    info: dict[str, Any]


def begin(rank: int, world: int, info: dict[str, Any] | None = None) -> Begin:
    """Return the first record of a trace in the current version; no other function knows the version."""
    return Begin(FORMAT, VERSION, rank, world, info or {})


class Stack(NamedTuple):
    """Defines stack ``id``: the calls that led to a record, innermost first, without torch's own."""

    id: int
    frames: tuple[Frame, ...]


class StreamName(NamedTuple):
    """Names stream ``stream`` of this rank ``name``. A later record replaces an earlier one."""

    stream: int
    name: str


TRAINING = "training"  # the phase of a program after its first call of a module
HOST_STREAM = "host"  # not a stream: stands for the host's own accesses to pinned memory


class Group(NamedTuple):
    """Process group ``group`` has these global ranks, in group order. Ids agree between ranks.

    Each pair of ranks that send has a group of its own: ``origin`` lists the ranks of the process group in which they
    send (empty: the record is a process group itself, or the trace is older than this field).
    """

    group: int
    ranks: tuple[int, ...]
    origin: tuple[int, ...] = ()


class Phase(NamedTuple):
    """A phase of training begins: ``name`` is init, forward, backward or step."""

    step: int
    micro_batch: int
    name: str


class Alloc(NamedTuple):
    """A block is allocated; ``stream`` was current, so the allocator will reuse the block in that stream's order.

    ``dtype``: type that the block was allocated for, decides the poison value. ``stack``: of the call (-1: not known).
    """

    block: int
    nbytes: int
    stream: int
    time: int
    dtype: str = "uint8"
    stack: int = -1


class Free(NamedTuple):
    """The host dropped its last reference: from now on the allocator may hand the memory out again.

    ``poisoned``: a stream that no ``record_stream`` names was given work on the block, so the block was poisoned.
    ``quiet``: the free touched nothing, and the reuse of the memory is recorded by :class:`Reuse`.
    """

    block: int
    time: int
    poisoned: bool = False
    quiet: bool = False


class Reuse(NamedTuple):
    """Bytes ``lo`` to ``hi`` of the new ``block`` were those of the freed ``former`` from ``start`` on.

    ``stack``: of the allocation. ``last``: nothing of ``former`` is left to hand out. ``block`` NOBODY: only this.
    """

    block: int
    former: int
    lo: int
    hi: int
    start: int
    stack: int
    last: bool


class Export(NamedTuple):
    """The program got a block's address (``how``: numpy, data_ptr), so its accesses are unseen; or gave it up."""

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

    A label may come later than the accesses that it explains.
    """

    block: int
    lo: int
    hi: int
    kind: str
    name: str


class Launch(NamedTuple):
    """A kernel launched on a stream. The kernel reads and writes at ``end``.

    ``nominal``: the kernel's own duration in nanoseconds, before the timing stretches it (-1: not known).
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

    The wait of the group's stream for the issuing stream, and of the current stream in ``Work.wait()``, are separate
    records. ``number`` counts the collectives of ``group``, the same on all its ranks. ``root`` is a global rank
    (broadcast: the source; reduce: the destination), or -1 when every output depends on every input. ``issuer``: the
    stream that was current (-1: not known). ``nominal``: the bytes of the whole that is exchanged, from which its
    duration follows (-1: not known). ``alone``: nanoseconds on this rank when nothing delays it (-1: not recorded);
    ``link``: the link that carries it, as a timing names it. ``call``: what its ranks must agree on
    (:class:`streamrace.trace.calls.AgreedCall`, as text; empty: not recorded, or its group has one rank).
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
    call: str = ""


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

    The host's clock stood at ``began`` (-1: not known) when the wait began, and at ``time`` afterwards.
    """

    marker: int
    how: str
    stack: int
    time: int
    began: int = -1


class HostStep(NamedTuple):
    """The host's clock advanced to ``time`` without ordering anything. ``how``: asked (a ``query()`` of ``marker``, -1:
    not known, that answered False), met (the host waited for all streams, or for ``stream``, where no program may rely
    on the wait: while a process group was created), or called (the program called so many Python functions, ``calls``).
    """

    how: str
    time: int
    stream: int = -1
    marker: int = -1
    calls: int = 0


View = tuple[int, str, tuple[int, ...], tuple[int, ...], int, bool, bool]
"""A tensor: block, dtype, shape, strides and offset in elements, conjugate bit, negative bit."""


class Call(NamedTuple):
    """The computation of launch ``op``: operator ``function`` of torch with its arguments
    (:mod:`streamrace.device.values`).

    ``outputs`` are the new tensors, ``places`` their positions among the returned values, ``dtype`` is torch's default
    dtype. ``random`` is the state of the random generator if the operator draws. ``host``: the operator was run by the
    host, after it had waited for the stream; ``result`` is the value that the host obtained. Not operators are "" (the
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
    """The data that collective ``op`` exchanges. ``scale``: factor applied to each rank's numbers before the sum."""

    op: int
    inputs: tuple[View, ...]
    outputs: tuple[View, ...]
    reduction: str = ""
    splits: tuple[tuple[int, ...], tuple[int, ...]] | None = None
    scale: float | None = None


class Initial(NamedTuple):
    """A block of the host's own memory, with its content when the device first saw it."""

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
    """The CRC-32 of a :class:`Probe`'s bytes in row order, taken when the value was available."""

    probe: int
    checksum: int


class Standstill(NamedTuple):
    """The host of this rank is at this stack, and its collectives cannot go on; ``why``: the device's sentence.

    ``call``: of collective ``number`` of ``group``, which cannot take place; ``lacks``: the ranks that have not arrived
    at it, though they may have issued it. The trace may lack its :class:`Collective`, if the device refused it when it
    was issued.
    """

    stack: int
    group: int
    number: int
    call: str
    lacks: tuple[int, ...]
    why: str


class End(NamedTuple):
    """Last record of a trace that was closed in good order."""

    time: int


class Onward(NamedTuple):
    """The trace continues in file ``part``, which is kept until it was judged (:mod:`streamrace.trace.parts`).

    ``operations``: launches and collectives of this rank up to here; ``op``: the last one's number (-1: none).
    """

    part: int
    operations: int
    op: int

    def sentence(self) -> str:
        """Return a clause, without a full stop: how much of the trace remains, and how to keep all of it."""
        return (
            f"it holds the first {self.operations:,} operations of its rank, and what came then was judged and not "
            "kept. Run the program again with 'streamrace check --keep-trace 0', which keeps all"
        )


class Seal(NamedTuple):
    """Follows :class:`streamrace.trace.records.End`: the SHA-256 of all bytes of the file before this record."""

    digest: bytes


class Unrepeatable(NamedTuple):
    """The recording cannot be replayed; ``reason`` says why."""

    reason: str


class Asked(NamedTuple):
    """The program makes a call that orders something, at this place; the resulting records follow.

    ``operation``: one of :data:`streamrace.device.overrides.OPERATIONS`, preceded by :data:`LEFT_OUT` where the call
    was left out, or empty: the call was made by a library of the device's own. ``block``: of ``record_stream``, which
    is recorded once for each block and ``stream``, however many calls there are. Written only in runs that distinguish
    their waits (:func:`streamrace.device.overrides.tell`).
    """

    operation: str
    file: str
    line: int
    function: str
    stream: int
    block: int = -1


class KernelFault(NamedTuple):
    """Operation ``op``, a kernel whose programs were followed one by one, has a fault inside.

    ``kind``: write-read, read-write or write-write, of two programs of its grid that nothing orders; outside, an access
    beyond the memory of all arguments; repeated, a store with two values for one element; hazard, an access without a
    barrier to an element that another thread of the program has accessed. ``verb``: what the second access does
    (read, write). ``first`` and ``second``: the lines of the kernel, as a :class:`Frame` has them; the first one's file
    is empty if there is one access. ``programs``: the three indices of the first, then of the second program.
    """

    op: int
    kind: str
    verb: str
    first: tuple[str, int, str]
    second: tuple[str, int, str]
    programs: tuple[int, ...]


class Unrecorded(NamedTuple):
    """Something that the program did on a real GPU is not in the trace; ``what`` says it, a clause.

    It happened so many ``times``, first at ``stack``.
    """

    what: str
    stack: int
    times: int


TraceRecord = (
    Begin | Stack | StreamName | Group | Phase | Alloc | Free | RecordStream | Label | Launch
    | Collective | Record | Wait | HostWait | End | HostStep | Call | Transfer | Initial | Probe | Probed | Unrepeatable
    | Seal | Reuse | Export | Asked | Onward | KernelFault | PoolPart | GraphPart | Replay | Dangling | KeptOutput
    | Standstill | Unrecorded
)  # fmt: skip
