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

import hashlib
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, get_args

from streamrace.device.asked import Asked
from streamrace.device.onward import Onward, Seal, Unrepeatable
from streamrace.device.packed import Packed

FORMAT = "stream-race-trace"
NOBODY = -1
LOOK, WROTE, NOTHING = "look", "wrote", "nothing"  # functions of a Call that are no operators
VERSION = 3
_READ = (2, 3)  # 2 had no Reuse, no Export, and no free that touches nothing


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


TraceRecord = (
    Begin | Stack | StreamName | Group | Phase | Alloc | Free | RecordStream | Label | Launch
    | Collective | Record | Wait | HostWait | End | HostStep | Call | Transfer | Initial | Probe | Probed | Unrepeatable
    | Seal | Reuse | Export | Asked | Onward
)  # fmt: skip

_TYPES: tuple[type[Any], ...] = get_args(TraceRecord)
_CODES = {kind: code for code, kind in enumerate(_TYPES)}
_new = tuple.__new__  # a NamedTuple's own way of being made takes four times as long
_PLAIN = {_CODES[one]: (1 + len(one._fields), one) for one in _TYPES if one not in (Begin, Stack, Onward)}  # as is


def file_of(folder: Path, rank: int) -> Path:
    """Where ``rank``'s trace lies in a run's trace folder."""
    return folder / f"rank{rank}.trace"


class TraceWriter:
    """Appends records to one rank's file."""

    def __init__(self, path: Path, *, rank: int, world: int, info: dict[str, Any]) -> None:
        import msgpack

        self._file: BinaryIO = path.open("wb")
        self._packer = msgpack.Packer()
        self._digest = hashlib.sha256()
        self.write([begin(rank, world, info)])

    def write(self, records: Iterable[TraceRecord | Packed]) -> None:
        """Write the records and hand them to the operating system, so that another process can read on."""
        pack, left = self._packer.pack, iter(records)
        while batch := [*islice(left, 4096)]:  # there may be very many
            data = b"".join([one.data if isinstance(one, Packed) else pack((_CODES[type(one)], *one)) for one in batch])
            self._digest.update(data)
            self._file.write(data)
        self._file.flush()

    def close(self) -> None:
        """Seal the file: what is added or changed later is noticed by who asks (:func:`sealed`)."""
        if not self._file.closed:
            self.write([Seal(self._digest.digest())])
            self._file.close()


class TraceReader:
    """Reads one rank's file, also while it is written; a part: ``device.parts``. Raises :class:`TraceError`."""

    def __init__(self, path: Path) -> None:
        import msgpack

        self._path = path
        self._damage: tuple[type[Exception], ...] = (msgpack.UnpackException, ValueError, TypeError)
        try:
            self._file: BinaryIO = path.open("rb")
        except OSError as error:
            raise TraceError(f"cannot read trace {path}: {error.strerror}") from error
        self._unpacker = msgpack.Unpacker(use_list=False, max_buffer_size=1 << 31, strict_map_key=False)
        self._begun = False

    def read(self) -> Iterator[TraceRecord]:
        """What is new since the last call."""
        while chunk := self._file.read(1 << 18):
            self._unpacker.feed(chunk)
            try:
                for row in self._unpacker:
                    plain = _PLAIN.get(row[0]) if self._begun and type(row) is tuple and row else None
                    if plain is not None and len(row) == plain[0]:
                        yield _new(plain[1], row[1:])
                    elif isinstance(record := self._record(row), Onward):
                        self._go_on(record)
                    else:
                        yield record
            except self._damage as error:
                if isinstance(error, TraceError):
                    raise
                raise TraceError(f"trace {self._path} is damaged: {error}") from error

    def _record(self, row: Any) -> TraceRecord:
        if not isinstance(row, tuple) or not row or row[0] not in range(len(_TYPES)):
            raise TraceError(f"{self._path} is not a trace of this project")
        record: TraceRecord = _TYPES[row[0]](*row[1:])
        if isinstance(record, Stack):
            record = record._replace(frames=tuple(Frame(*frame) for frame in record.frames))
        if not self._begun:
            if not isinstance(record, Begin) or record.format != FORMAT:
                raise TraceError(f"{self._path} is not a trace of this project")
            if record.version not in _READ:
                raise TraceError(
                    f"trace {self._path} has format version {record.version}, this release reads up to {VERSION}: "
                    "run the scenario again, or use the release that wrote it"
                )
            self._begun = True
        return record

    def _go_on(self, record: Onward) -> None:
        """The file ends here, and there was more."""
        raise TraceError(f"trace {self._path} was thinned: {record.sentence()}")

    def close(self) -> None:
        self._file.close()
