"""Converts dumps of torch's flight recorder into the records of traces, which the detector of hangs reads.

A dump has neither reductions nor roots, and not how all_to_all splits one tensor: these are left out of the comparison.
Collectives are known again on other ranks by their sequence number. Messages have none that both ends share: they are
counted, from the first that has not completed if an end has lost some.

A rank stands in its first collective that has not completed. It lacks the ranks that have not issued that, and those
that stand in another one which they issued before.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from streamrace.detectors.hangs import ranks as listed
from streamrace.reports.data.flight_recorder import Dump, RecordedCall
from streamrace.trace import wording
from streamrace.trace.calls import AgreedCall
from streamrace.trace.records import Collective, Group, Stack, Standstill, TraceRecord, begin

_KINDS = {
    "_broadcast_oop": "broadcast",
    "_reduce_oop": "reduce",
    "_all_gather_base": "all_gather",
    "all_gather_single": "all_gather",
    "all_gather_into_tensor_coalesced": "all_gather",
    "ALLGATHER_coalesced": "all_gather",
    "_reduce_scatter_base": "reduce_scatter",
    "reduce_scatter_single": "reduce_scatter",
    "reduce_scatter_tensor_coalesced": "reduce_scatter",
    "REDUCE_SCATTER_coalesced": "reduce_scatter",
    "allreduce_coalesced": "all_reduce",
    "all_reduce_barrier": "all_reduce",
    "all_to_all_single": "all_to_all",
    "all_to_all_v_single": "all_to_all",
}
_TYPES = {
    "Float": "float32", "Double": "float64", "Half": "float16", "BFloat16": "bfloat16", "Long": "int64", "Int": "int32",
    "Short": "int16", "Char": "int8", "Byte": "uint8", "Bool": "uint8", "ComplexFloat": "complex64",
    "ComplexDouble": "complex128",
}  # fmt: skip
_OF_ONE = frozenset({"all_reduce", "broadcast", "gather", "recv", "reduce", "scatter", "send"})
_ANY = (0,), (0,)  # sizes that are not compared
_Key = tuple[int, int]


@dataclass(frozen=True, eq=False)
class _Call:
    """A call of a rank. ``members``: of the group, with and without a dump. ``done``, ``joined``: as its batch is."""

    key: _Key
    entry: RecordedCall
    members: tuple[int, ...]
    done: bool
    joined: bool


class _Traced(NamedTuple):
    """A group of the traces: a group of the dumps, a direction in it, or the calls at one position in batches."""

    name: str
    members: tuple[int, ...]
    direction: tuple[int, ...]
    part: int


@dataclass
class Records:
    """The records of each rank, and the groups' names. ``unseen``: clauses about what the dumps do not tell."""

    of: dict[int, list[TraceRecord]] = field(default_factory=dict)
    names: dict[int, str] = field(default_factory=dict)
    unseen: list[str] = field(default_factory=list)


def records(dumps: Sequence[Dump]) -> Records:
    """Return the dumps of a job as traces."""
    return _Job(dumps).records()


class _Job:
    def __init__(self, dumps: Sequence[Dump]) -> None:
        self._dumps = {dump.rank: dump for dump in dumps}
        self._numbers: dict[_Traced, int] = {}
        self._descs: dict[tuple[str, tuple[int, ...]], str] = {}
        self._guessed: dict[str, tuple[int, ...]] = {}
        self._anonymous = False  # a message from any rank
        calls = {dump.rank: list(self._calls(dump)) for dump in dumps}
        self._issued = {rank: {call.key: call for call in some} for rank, some in calls.items()}
        self._lowest: dict[_Key, int] = {}  # by rank and group
        for rank, some in calls.items():
            for call in some:
                group, number = call.key
                self._lowest[rank, group] = min(number, self._lowest.get((rank, group), number))
        self._kept = {rank: [call for call in some if not self._is_lost(call)] for rank, some in calls.items()}
        self._fronts = {rank: {call.key for call in _front(some)} for rank, some in self._kept.items()}

    def records(self) -> Records:
        groups = {number: self._group(number, traced) for traced, number in self._numbers.items()}
        every = [call for calls in self._kept.values() for call in calls]
        unsized = {call.key for call in every if _sizes(call) is None}
        untyped = {call.key for call in every if not call.entry.dtype}
        made = Records(names=self._names(), unseen=list(self._unseen(every)))
        for rank, calls in self._kept.items():
            stacks = {(): 0, **{call.entry.stack: 0 for call in calls}}
            stacks = {frames: number for number, frames in enumerate(stacks)}
            issued, stands = [], None
            for number, call in enumerate(calls):
                group, stack = groups[call.key[0]], stacks[call.entry.stack]
                text = self._agreed(call, sized=call.key not in unsized, typed=call.key not in untyped).text()
                issued.append(_collective(number, call, text, stack, group))
                if call.key in self._fronts[rank]:
                    lacks = tuple(other for other in group.ranks if other != rank and self._lacks(other, call.key))
                    if stands is None or (lacks and not stands.lacks):
                        stands = Standstill(stack, *call.key, text, lacks, "it has not completed")
            made.of[rank] = [
                begin(rank, len(self._dumps), {"dump": True}),
                *(groups[group] for group in dict.fromkeys(call.key[0] for call in calls)),
                *(Stack(number, frames) for frames, number in stacks.items()),
                *issued,
                *([stands] if stands else []),
            ]
        return made

    def _calls(self, dump: Dump) -> Iterator[_Call]:
        closing = {entry.batch: entry for entry in dump.entries if entry.closes}
        parts: Counter[tuple[str, bool, int]] = Counter()
        counts: Counter[int] = Counter()
        cut = dump.entries[0].batch if dump.lost and dump.entries else None
        before = None
        for entry in dump.entries:
            closer, part, members = closing.get(entry.batch, entry), parts[entry.batch], self._ranks(dump, entry)
            parts[entry.batch] += 1
            if entry.is_p2p and not entry.between and not entry.closes:
                self._anonymous = True
                continue
            if len(members) < 2 or (entry.closes and part) or (closer.done and entry.batch == cut):
                continue
            ends = tuple(members[at] if at < len(members) else -1 for at in entry.between or ())
            if ends and closer.done and not all(end in self._dumps and not self._dumps[end].lost for end in ends):
                continue
            traced = _Traced(entry.group, members, ends, 0 if ends else part)
            group = self._numbers.setdefault(traced, len(self._numbers) + 1)
            self._descs[entry.group, members] = entry.process_group[1]
            counts[group] += 1
            number = counts[group] if ends else entry.batch[2]
            yield _Call((group, number), entry, members, closer.done, joined=before == entry.batch)
            before = entry.batch

    def _ranks(self, dump: Dump, entry: RecordedCall) -> tuple[int, ...]:
        """Return the ranks of the entry's group; where no dump has them, those that use it."""
        name = entry.group
        if name in dump.groups:
            return dump.groups[name]
        if name not in self._guessed:
            using = (
                rank
                for rank, other in self._dumps.items()
                if entry.process_group[1] == "default_pg" or any(one.group == name for one in other.entries)
            )
            self._guessed[name] = tuple(sorted(using))
        return self._guessed[name]

    def _group(self, number: int, traced: _Traced) -> Group:
        """Return the group of those ranks that have a dump; of a message, of both ends."""
        if traced.direction:
            return Group(number, traced.direction, traced.members)
        return Group(number, tuple(rank for rank in traced.members if rank in self._dumps))

    def _names(self) -> dict[int, str]:
        named: dict[tuple[int, ...], set[str]] = {}
        for traced in self._numbers:
            named.setdefault(traced.members, set()).add(traced.name)
        names = {}
        for traced, number in self._numbers.items():
            desc = self._descs[traced.name, traced.members]
            aside = f" ({desc})" if desc not in ("", "undefined") else ""
            several = len(named[traced.members]) > 1 and not traced.direction
            text = listed(traced.direction or traced.members)
            names[number] = f"group {traced.name}{aside} of {text}" if several else text
        return names

    def _is_lost(self, call: _Call) -> bool:
        """Check whether another rank has lost its part of a collective that took place."""
        group, number = call.key
        return call.done and any(
            number < self._lowest.get((other, group), number + 1)
            for other in call.members
            if other in self._dumps and self._dumps[other].lost and call.key not in self._issued[other]
        )

    def _lacks(self, other: int, key: _Key) -> bool:
        """Check whether a rank has yet to come to a collective in which another one stands."""
        if other not in self._dumps:
            return False
        call = self._issued[other].get(key)
        if call is None:
            return not self._dumps[other].active
        return not call.done and call.entry.state == "scheduled" and key not in self._fronts[other]

    def _agreed(self, call: _Call, *, sized: bool, typed: bool) -> AgreedCall:
        entry, kind = call.entry, _kind(call.entry)
        known = [at for at, rank in enumerate(call.members) if rank in self._dumps]
        gives, takes = (
            tuple(each[at] for at in known) if len(each) > 1 else each for each in (sized and _sizes(call)) or _ANY
        )
        inputs, outputs = entry.elements()
        tensors = outputs if kind == "scatter" else inputs or outputs
        dtype = _TYPES.get(entry.dtype, entry.dtype.lower()) if typed else "elements"
        name = entry.function if entry.function != kind else ""  # gloo has a barrier of its own
        return AgreedCall(kind, dtype, "", -1, sum(tensors), gives, takes, name, call.joined)

    def _unseen(self, calls: Sequence[_Call]) -> Iterator[str]:
        yield "Reductions and roots are not in a dump, and not compared"
        if any(_kind(call.entry) == "all_to_all" and _sizes(call) is None for call in calls):
            yield "The splits of an all_to_all of one tensor are not in a dump, and not compared"
        if missing := sorted({rank for traced in self._numbers for rank in traced.members} - self._dumps.keys()):
            yield f"There is no dump of {listed(missing)}: nothing is known of what it issued"
        if lost := [rank for rank, dump in self._dumps.items() if dump.lost]:
            yield (
                f"On {listed(lost)} the recorder has lost earlier calls: compared is what all ranks of a group still "
                "have, and messages are counted from the first that has not completed"
            )
        if active := [rank for rank, dump in self._dumps.items() if dump.active]:
            yield f"On {listed(active)} the recorder left out what has completed: a call may have, if it is not there"
        if self._guessed:
            names = wording.every(f"'{name}'" for name in self._guessed)
            which = wording.plural_of(len(self._guessed), "group")
            yield f"The dumps do not tell the ranks of {which} {names}: those whose dumps have it are taken for all"
        if self._anonymous:
            yield "Messages from any rank are left out: who sent them is not in a dump"
        if calls and not any(call.entry.stack for call in calls):
            yield "The dumps have no lines: torch writes them into pickles alone, with TORCH_INCLUDE_STACK_TRACE"


def _front(calls: Sequence[_Call]) -> Iterator[_Call]:
    """Yield the first call that is not done, and those that were issued as one with it."""
    first = next((call for call in calls if not call.done), None)
    if first is not None:
        yield from (call for call in calls if call.entry.batch == first.entry.batch)


def _kind(entry: RecordedCall) -> str:
    return _KINDS.get(entry.operation, entry.operation)


def _sizes(call: _Call) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """Return the elements that a rank gives to each member, and takes; None if the entry does not tell."""
    kind, count, (inputs, outputs) = _kind(call.entry), len(call.members), call.entry.elements()
    if kind in ("all_gather", "reduce_scatter"):
        whole, part = (outputs, inputs) if kind == "all_gather" else (inputs, outputs)
        each = whole if len(whole) == count and len(part) == 1 else (sum(whole) // count,)
        gives, takes = ((sum(part),), each) if kind == "all_gather" else (each, (sum(part),))
        return (gives, takes) if inputs and outputs else None
    if kind == "all_to_all":
        return (inputs, outputs) if len(inputs) == len(outputs) == count else None
    tensors = outputs if kind == "scatter" else inputs or outputs
    return ((sum(tensors),), (sum(tensors),)) if tensors and kind in _OF_ONE else None


def _collective(number: int, call: _Call, text: str, stack: int, group: Group) -> Collective:
    root = group.ranks[0] if call.entry.between else -1
    kernel = f"nccl::{_kind(call.entry)}"
    return Collective(number, 0, kernel, (), (), stack, 0, 0, 0, *call.key, root, call=text)
