"""Names operations so that the names survive unrelated changes of the program.

A name consists of the rank, the phase of training, the parameter whose memory the operation touches, its kernel, and
its occurrence among the operations that have all of this in common. The operation's number in the trace would change
with every operation before it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from typing import NamedTuple

from streamrace.trace import wording
from streamrace.trace.records import Access, Collective, Label, Launch, Phase, TraceRecord

_BEFORE_ANY = Phase(0, 0, "init")
_AT_MOST = 8  # alternatives listed in a sentence


class OperationName(NamedTuple):
    """The name of one operation. ``parameter`` is empty without a label, ``occurrence`` counts from 1."""

    rank: int
    step: int
    micro_batch: int
    phase: str
    parameter: str
    kernel: str
    occurrence: int


class UnknownOperation(Exception):
    """Reports in one sentence that the run has no operation of this name: the part that is missing, and the nearest."""


class _Labels:
    """Finds the parameter of an access. Cached: most blocks have no label, and the same bytes come up repeatedly."""

    def __init__(self) -> None:
        self._of: dict[int, dict[tuple[int, int, str], None]] = {}  # by block an ordered set: DeepSpeed repeats labels
        self._found: dict[tuple[int, int, int], str | None] = {}

    def add(self, label: Label) -> None:
        self._of.setdefault(label.block, {})[label.lo, label.hi, label.name] = None

    def first(self, accesses: Iterable[Access]) -> str | None:
        """Return the name of the first label that overlaps the first access with an overlapping label."""
        for block, lo, hi, _ in accesses:
            if (labels := self._of.get(block)) is None:
                continue
            if (block, lo, hi) not in self._found:
                hit = (name for begin, end, name in labels if begin < hi and lo < end)
                self._found[block, lo, hi] = next(hit, None)
            if (name := self._found[block, lo, hi]) is not None:
                return name
        return None


class Names:
    """The names of all operations of a run."""

    def __init__(self) -> None:
        self._numbers: dict[OperationName, int] = {}
        self._names: dict[int, dict[int, OperationName]] = {}

    @classmethod
    def of(cls, traces: Mapping[int, Iterable[TraceRecord]]) -> Names:
        """Name the operations in the records of each rank. Each iterable is read once."""
        names = cls()
        for rank in sorted(traces):
            names._add(rank, traces[rank])
        return names

    def _add(self, rank: int, records: Iterable[TraceRecord]) -> None:
        # A label may come later than the accesses that it explains, so naming comes after collecting.
        labels, phase, issued = _Labels(), _BEFORE_ANY, list[tuple[Phase, Launch | Collective]]()
        for record in records:
            if isinstance(record, (Launch, Collective)):
                issued.append((phase, record))
            elif isinstance(record, Label):
                labels.add(record)
            elif isinstance(record, Phase):
                phase = record
        occurrences: Counter[tuple[Phase, str, str]] = Counter()
        numbers, of_rank = self._numbers, self._names.setdefault(rank, {})
        for phase, operation in issued:
            parameter = labels.first(operation.writes)
            if parameter is None:
                parameter = labels.first(operation.reads) or ""
            kernel = wording.operator(operation.kernel)
            like = (phase, parameter, kernel)
            occurrences[like] = occurrence = occurrences[like] + 1
            name = OperationName(rank, *phase, parameter, kernel, occurrence)
            numbers[name] = operation.op
            of_rank[operation.op] = name

    @property
    def ranks(self) -> Sequence[int]:
        """Return the ranks in ascending order."""
        return tuple(self._names)

    def __len__(self) -> int:
        """Return the number of operations on all ranks."""
        return len(self._numbers)

    def number(self, name: OperationName) -> int:
        """Return the operation's number in its rank's trace. Raises :class:`UnknownOperation`."""
        try:
            return self._numbers[name]
        except KeyError:
            raise UnknownOperation(self._why_not(name)) from None

    def name(self, rank: int, op: int) -> OperationName:
        """Return the name of operation ``op`` of ``rank``. Raises :class:`KeyError` if the operation does not exist."""
        return self._names[rank][op]

    def of_rank(self, rank: int) -> Sequence[OperationName]:
        """Return the rank's operations in order of issue. Raises :class:`KeyError` if the rank does not exist."""
        return tuple(self._names[rank].values())

    def _why_not(self, name: OperationName) -> str:
        """Compare part by part, from rank to occurrence, and report the first part that does not exist."""
        if name.rank not in self._names:
            return f"there is no rank {name.rank}: the run has rank {_listed(self._names)}"
        names = self.of_rank(name.rank)
        where = f"in {name.phase} of step {name.step}, micro-batch {name.micro_batch} on rank {name.rank}"
        steps = dict.fromkeys(entry.step for entry in names)
        if name.step not in steps:
            return f"there is no operation {where}: that rank has operations in step {_listed(steps)}"
        names = [entry for entry in names if entry.step == name.step]
        phases = dict.fromkeys(f"{entry.phase} of micro-batch {entry.micro_batch}" for entry in names)
        names = [entry for entry in names if (entry.micro_batch, entry.phase) == (name.micro_batch, name.phase)]
        if not names:
            return f"there is no operation {where}: that step has {_listed(phases)}"
        parameters = dict.fromkeys(entry.parameter for entry in names)
        if name.parameter not in parameters:
            if not name.parameter:
                return f"there is no operation without a parameter {where}"
            near = get_close_matches(name.parameter, [text for text in parameters if text], n=1, cutoff=0)
            nearest = f"the nearest is {near[0]!r}" if near else "none there has a parameter"
            return f"there is no operation on {name.parameter!r} {where}: {nearest}"
        on = f"on {name.parameter!r}" if name.parameter else "without a parameter"
        names = [entry for entry in names if entry.parameter == name.parameter]
        kernels = Counter(entry.kernel for entry in names)
        if name.kernel not in kernels:
            return f"there is no {name.kernel!r} {on} {where}: there is {_listed(map(repr, kernels))}"
        return (
            f"there is no occurrence {name.occurrence} of {name.kernel!r} {on} {where}: "
            f"the last is occurrence {kernels[name.kernel]}"
        )


def _listed(alternatives: Iterable[object]) -> str:
    return wording.few(alternatives, _AT_MOST) or "none"
