"""Proves causes from checksums: follows each partition from the source of its values to their use.

Along a step a rank measures, for each parameter, in this order of issue:

* ``update``: its primary partition, when the optimizer step has written it, a new version; ``edit``: the same after
  another write, or when the watch begins;
* ``read``: the partition that an all-gather is about to read, on the stream that reads;
* ``use``: the gathered parameter, one sum for each rank's part, on the stream that computes with it;
* ``source``, ``copied``: the values to be copied into the secondary partition, before the copy is issued, and
  its contents after the copy, both on the stream that copies;
* ``settled``: both partitions once more before the optimizer step, on the compute stream.

A read differs from the last write, and the partition is right when it has settled: the read
came before the write, a **race**. It stays wrong: memory changed, **corruption**. Nothing was written
since the parameter changed, and the read finds an older version: **stale**. The copy itself leaves
other values than its source: **uncovered**. The read is right, and other values arrive: **all-gather**.
The checksums are sums modulo 2**64 of bits, so finite wrong values count as much as NaN.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from streamrace.detectors.live.finding import Cause, Kind
from streamrace.detectors.live.ops import add


class SumEvent(StrEnum):
    UPDATE = "update"
    EDIT = "edit"
    READ = "read"
    USE = "use"
    SOURCE = "source"
    COPIED = "copied"
    SETTLED = "settled"


class Sum(NamedTuple):
    """One measurement. ``partition``: the kind of partition measured. ``sums``: one for each part."""

    event: SumEvent
    parameter: str
    partition: Kind
    micro_batch: int
    phase: str
    order: int
    sums: tuple[int, ...]


class Shape(NamedTuple):
    """The partitioning of a parameter: this rank's part (-1: not sharded), the parts in its secondary partition.

    ``inner``: this rank's index in its hpZ group, that is its part among the secondary partitions. ``lossy``: quantized
    for the all-gather, so that the values that arrive are not those that were read.
    """

    part: int = -1
    secondary: tuple[int, int] = (0, 0)
    lossy: bool = False
    inner: int = -1

    def part_of(self, partition: Kind) -> int:
        """Return the index of the part that this rank's partition holds."""
        return self.inner if partition is Kind.SECONDARY else self.part


@dataclass(frozen=True)
class Mismatch:
    """A measurement that is not what it must be. ``version``: the step that used the measured values (-1: none)."""

    cause: Cause
    at: Sum
    part: int
    version: int = -1
    evidence: tuple[str, ...] = ()


@dataclass
class _Chain:
    """One parameter on one rank. ``version`` counts its writes; ``step``: after which the last write was."""

    shape: Shape
    version: int = 0
    step: int = 0
    primary: int | None = None
    source: int | None = None
    copied: int | None = None
    copied_version: int = -1
    copied_step: int = -1
    copied_primary: int | None = None  # contents of the primary partition at the copy
    reads_from: Kind = Kind.PRIMARY
    first_use: tuple[int, ...] | None = None  # of this version
    older: dict[Kind, deque[tuple[int, int]]] = field(default_factory=dict)  # (step, sum)
    pending: list[tuple[Sum, int]] = field(default_factory=list)  # wrong reads, and the expected sum


class Chains:
    """All parameters of one rank. Fed step by step."""

    def __init__(self, *, versions: int = 4) -> None:
        self._versions = versions
        self._chains: dict[str, _Chain] = {}

    def shape(self, parameter: str, shape: Shape) -> None:
        """Set how a parameter is partitioned."""
        self._chains.setdefault(parameter, _Chain(shape)).shape = shape

    def step(self, step: int, sums: Iterable[Sum], *, skipped: bool = False) -> list[Mismatch]:
        """Take in one step's measurements; return the mismatches, in order of execution.

        ``skipped``: the optimizer left the step out, so no parameter has a new version.
        """
        mismatches: list[Mismatch] = []
        for entry in sorted(sums, key=lambda entry: entry.order):
            chain = self._chains.setdefault(entry.parameter, _Chain(Shape()))
            match entry.event:
                case SumEvent.UPDATE if not skipped or entry.sums[0] != chain.primary:
                    self._written(chain, step, entry)
                case SumEvent.EDIT:
                    self._written(chain, step - 1, entry)
                case SumEvent.READ:
                    mismatches += self._read(chain, entry)
                case SumEvent.USE:
                    mismatches += self._use(chain, entry)
                case SumEvent.SOURCE:
                    mismatches += self._source(chain, entry)
                case SumEvent.COPIED:
                    mismatches += self._copied(chain, entry)
                case SumEvent.SETTLED:
                    mismatches += self._settled(chain, entry)
        for chain in self._chains.values():  # secondary partitions that were dropped before they could settle
            mismatches += [_race(at, chain, expected, "released") for at, expected in chain.pending]
            chain.pending.clear()
        return sorted(mismatches, key=lambda mismatch: mismatch.at.order)

    def _written(self, chain: _Chain, step: int, entry: Sum) -> None:
        # A new version, even if this rank's own part came out the same: the others' parts need not.
        self._remember(chain, Kind.PRIMARY, chain.primary, chain.step)
        chain.primary = entry.sums[0]
        chain.version += 1
        chain.step = step
        chain.first_use = None

    def _remember(self, chain: _Chain, kind: Kind, value: int | None, step: int) -> None:
        if value is not None:
            chain.older.setdefault(kind, deque(maxlen=self._versions)).append((step, value))

    def _expected(self, chain: _Chain) -> int | None:
        """Return what the secondary partition must hold now."""
        if chain.copied_version == chain.version and chain.copied is not None:
            return chain.copied
        if chain.first_use is None:
            return None
        return add(*chain.first_use[slice(*chain.shape.secondary)])

    def _read(self, chain: _Chain, entry: Sum) -> list[Mismatch]:
        chain.reads_from = entry.partition
        if entry.partition is Kind.PRIMARY:
            if chain.primary is None:
                chain.primary = entry.sums[0]
            if entry.sums[0] != chain.primary:
                chain.pending.append((entry, chain.primary))
            return []
        expected = self._expected(chain)
        if entry.sums[0] == expected:
            if chain.copied_version != chain.version:
                self._holds(chain, expected)  # it was copied before any probe
            return []
        if expected is None:
            is_last_copy = chain.copied_version != chain.version and entry.sums[0] == chain.copied
            changed = chain.copied_primary != chain.primary
            return [_stale(entry, chain, chain.copied_step + 1)] if is_last_copy and changed else []
        if chain.copied_version == chain.version:
            chain.pending.append((entry, expected))
            return []
        if entry.sums[0] == chain.copied:
            return [_stale(entry, chain, chain.copied_step + 1)]
        return [_stale(entry, chain, self._step_of(chain, entry))]

    def _step_of(self, chain: _Chain, entry: Sum) -> int:
        """Return the step that used the measured version; -1: no version that is remembered."""
        older = chain.older.get(entry.partition, ())
        return next((step + 1 for step, value in reversed(older) if value == entry.sums[0]), -1)

    def _holds(self, chain: _Chain, value: int) -> None:
        """Note that the secondary partition holds this value, of the current version."""
        self._remember(chain, Kind.SECONDARY, chain.copied, chain.copied_step)
        chain.copied, chain.copied_primary = value, chain.primary
        chain.copied_version, chain.copied_step = chain.version, chain.step

    def _use(self, chain: _Chain, entry: Sum) -> list[Mismatch]:
        if chain.shape.lossy:
            return []
        own_part = chain.shape.part
        explained = any(at.partition is chain.reads_from for at, _ in chain.pending)
        if chain.first_use is None:
            is_known = -1 < own_part < len(entry.sums) and chain.primary is not None
            if is_known and entry.sums[own_part] != chain.primary and not explained:
                if chain.reads_from is Kind.SECONDARY and chain.copied_version != chain.version:
                    return [_unseen(entry, own_part)]
                return [_gather(entry, own_part, "this rank's own part is not what its partition holds")]
            if not explained:
                chain.first_use = entry.sums
            return []
        wrong = [part for part, pair in enumerate(zip(entry.sums, chain.first_use, strict=True)) if pair[0] != pair[1]]
        if not wrong or explained:
            return []
        return [_gather(entry, wrong[0], "the same version of the parameter had other values at its first use")]

    def _source(self, chain: _Chain, entry: Sum) -> list[Mismatch]:
        chain.source = entry.sums[0]
        if chain.first_use is None or chain.shape.lossy:
            return []
        used = add(*chain.first_use[slice(*chain.shape.secondary)])
        if used == entry.sums[0] or any(at.partition is chain.reads_from for at, _ in chain.pending):
            return []
        evidence = ("What is copied into the secondary partition is not what was used: it changed while gathered.",)
        at = entry._replace(partition=Kind.PARAMETER)
        return [Mismatch(Cause.CORRUPTION, at, chain.shape.inner, evidence=evidence)]

    def _copied(self, chain: _Chain, entry: Sum) -> list[Mismatch]:
        # The partition is overwritten, so what the last copy wrote is lost.
        anew = [pair for pair in chain.pending if pair[0].partition is entry.partition]
        races = [_race(at, chain, expected, "written anew") for at, expected in anew]
        chain.pending = [pair for pair in chain.pending if pair[0].partition is not entry.partition]
        source, chain.source = chain.source, None
        self._holds(chain, entry.sums[0])
        if source is None or source == entry.sums[0]:
            return races
        evidence = (
            "On the stream that copies, after the copy, the secondary partition differs from the copy's source: "
            "the copy leaves a part of it as it was.",
        )
        return [*races, Mismatch(Cause.UNCOVERED, entry, chain.shape.part_of(entry.partition), evidence=evidence)]

    def _settled(self, chain: _Chain, entry: Sum) -> list[Mismatch]:
        expected = chain.copied if entry.partition is Kind.SECONDARY else chain.primary
        if entry.partition is Kind.SECONDARY and chain.copied_version != chain.version:
            return []
        faults = []
        pending = []
        for at, expected_sum in chain.pending:
            if at.partition is not entry.partition:
                pending.append((at, expected_sum))
            elif entry.sums[0] == expected_sum:
                faults.append(_race(at, chain, expected_sum, "settled", self._step_of(chain, at)))
            else:
                evidence = ("Written right, read wrong, and still wrong later: memory changed, no copy is late.",)
                faults.append(Mismatch(Cause.CORRUPTION, at, chain.shape.part_of(at.partition), evidence=evidence))
        chain.pending = pending
        if not faults and expected is not None and entry.sums[0] != expected:
            reads = "All all-gathers read it right; before" if entry.partition is not Kind.PARAMETER else "Before"
            evidence = (f"{reads} the step the contents are not what was last written.",)
            faults.append(Mismatch(Cause.CORRUPTION, entry, chain.shape.part_of(entry.partition), evidence=evidence))
        return faults


def _race(at: Sum, chain: _Chain, expected: int, how: str, version: int = -1) -> Mismatch:
    evidence = [
        f"The all-gather read {at.sums[0]:016x} from the {at.partition}, where {expected:016x} was being written."
    ]
    if how == "settled":
        evidence.append("Later in the step the same partition is right: the write landed after the read.")
    else:
        evidence.append(f"The partition was {how} before it could be probed again.")
    if version >= 0:
        evidence.append(f"What was read equals the values of step {version}.")
    return Mismatch(Cause.RACE, at, chain.shape.part_of(at.partition), version, tuple(evidence))


def _stale(at: Sum, chain: _Chain, version: int) -> Mismatch:
    text = f"It holds the values of step {version}." if version >= 0 else "It holds none of the versions remembered."
    since = f"The parameter changed in step {chain.step}, and no copy into the {at.partition} was issued since."
    return Mismatch(Cause.STALE, at, chain.shape.part_of(at.partition), version, (since, text))


def _unseen(at: Sum, part: int) -> Mismatch:
    evidence = (
        "It was gathered from secondary partitions, and is not what the primary partition holds.",
        "Nothing was copied into the secondary partitions since the parameter changed or the watch began.",
    )
    return Mismatch(Cause.SHARDING, at, part, evidence=evidence)


def _gather(at: Sum, part: int, why: str) -> Mismatch:
    evidence = (f"What was gathered is wrong in the part of rank {part}: {why}.",)
    return Mismatch(Cause.GATHER, at, part, evidence=evidence)
