"""Compares two runs of one program value by value, and finds their first difference.

Differences are of bits, not of sizes: two runs of the same program on the same data must agree in
every bit, or something other than the program decided a value. The values compared are those that training
*uses*: each parameter at each use, and each loss, in the order of execution on its rank.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple, TypeVar

_Row = TypeVar("_Row", bound=tuple[Any, ...])
_PHASES = ("init", "forward", "backward", "step", "edit")


class Use(NamedTuple):
    """One use of a parameter: a checksum for each rank's part of it, and the number of values that are not finite.

    ``distance``: in the backward pass, the largest absolute difference to its values in the forward pass.
    """

    step: int
    micro_batch: int
    phase: str
    name: str
    checksums: tuple[int, ...]
    bad: int
    distance: float = 0.0


class Loss(NamedTuple):
    """The loss of one micro-batch on one rank."""

    step: int
    micro_batch: int
    value: float


@dataclass
class Values:
    """The values that one run computed, by rank. ``norms``: of the gradients, by step; shown, not compared."""

    losses: dict[int, list[Loss]] = field(default_factory=dict)
    uses: dict[int, list[Use]] = field(default_factory=dict)
    final: dict[int, dict[str, int]] = field(default_factory=dict)
    norms: dict[int, dict[int, float]] = field(default_factory=dict)

    def add(
        self,
        rank: int,
        losses: Iterable[Sequence[Any]],
        uses: Iterable[Sequence[Any]],
        norms: Iterable[Sequence[Any]] = (),
    ) -> None:
        """Add more of a rank's values, in its order of execution."""
        self.losses.setdefault(rank, []).extend(Loss(*row) for row in losses)
        self.uses.setdefault(rank, []).extend(
            Use(step, micro, phase, name, tuple(sums), bad, distance)
            for step, micro, phase, name, sums, bad, distance in uses
        )
        self.norms.setdefault(rank, {}).update((step, norm) for step, norm in norms)


@dataclass(frozen=True)
class WrongParameter:
    """The first use of a parameter that does not hold the expected values.

    ``parts``: which ranks' parts (within the group that gathers it) are wrong. ``bad``: values that are
    not finite; 0 means finite and wrong.
    """

    step: int
    micro_batch: int
    phase: str
    rank: int
    name: str
    parts: tuple[int, ...]
    bad: int
    ranks: tuple[int, ...]


@dataclass(frozen=True)
class WrongLoss:
    """The first loss that differs."""

    step: int
    micro_batch: int
    rank: int
    value: float
    reference: float


@dataclass(frozen=True)
class Divergence:
    """The first differences between a run and its reference. All None and empty if the runs do not differ."""

    parameter: WrongParameter | None
    loss: WrongLoss | None
    final: tuple[str, ...]  # final partitions that differ, on any rank
    growth: tuple[tuple[int, float], ...]  # by step: largest absolute difference of a loss (NaN: a NaN)
    compared: int  # values that were compared

    @property
    def diverged(self) -> bool:
        return self.parameter is not None or self.loss is not None or bool(self.final)

    def as_dict(self) -> dict[str, Any]:
        """Return JSON-ready data; a loss that is not finite becomes text, as JSON has no number for it."""
        data = asdict(self)
        data["growth"] = [[step, number(value)] for step, value in self.growth]
        if self.loss is not None:
            data["loss"].update(value=number(self.loss.value), reference=number(self.loss.reference))
        return data


def compare(reference: Values, run: Values) -> Divergence:
    """Return the first differences of ``run`` against ``reference``, over the values that both have."""
    compared = 0
    wrong: list[tuple[tuple[int, int, int, int, int], int, Use, Use]] = []
    for rank, uses in sorted(run.uses.items()):
        expected = by_occurrence(reference.uses.get(rank, ()), 4)
        position = {key: index for index, key in enumerate(expected)}
        for key, use in by_occurrence(uses, 4).items():
            expected_use = expected.get(key)
            if expected_use is None:
                continue
            compared += 1
            if use.checksums != expected_use.checksums:
                order = (use.step, use.micro_batch, _PHASES.index(use.phase), position[key], rank)
                wrong.append((order, rank, use, expected_use))
                break
    parameter = None
    if wrong:
        (step, micro_batch, _, _, _), rank, use, expected_use = min(wrong)
        parts = tuple(
            i for i, pair in enumerate(zip(use.checksums, expected_use.checksums, strict=True)) if pair[0] != pair[1]
        )
        place = (step, micro_batch, use.phase, use.name)
        ranks = tuple(sorted(at_rank for _, at_rank, use, _ in wrong if use[:4] == place))
        parameter = WrongParameter(step, micro_batch, use.phase, rank, use.name, parts, use.bad, ranks)

    losses: list[tuple[int, int, int, float, float]] = []
    growth: dict[int, float] = {}
    for rank, values in sorted(run.losses.items()):
        references = {(loss.step, loss.micro_batch): loss.value for loss in reference.losses.get(rank, ())}
        for loss in values:
            expected_value = references.get((loss.step, loss.micro_batch))
            if expected_value is None:
                continue
            compared += 1
            difference = abs(loss.value - expected_value)
            largest = growth.get(loss.step, 0.0)
            growth[loss.step] = (
                difference if math.isnan(difference) else largest if math.isnan(largest) else max(largest, difference)
            )
            if not _same(loss.value, expected_value):
                losses.append((loss.step, loss.micro_batch, rank, loss.value, expected_value))
    first = min(losses, key=lambda row: row[:3], default=None)
    final = sorted(
        {
            name
            for rank, sums in run.final.items()
            for name, value in sums.items()
            if reference.final.get(rank, {}).get(name, value) != value
        }
    )
    return Divergence(
        parameter, WrongLoss(*first) if first else None, tuple(final), tuple(sorted(growth.items())), compared
    )


def by_occurrence(uses: Iterable[_Row], fields: int) -> dict[tuple[Any, ...], _Row]:
    """Map uses by their first ``fields`` fields and a count: a parameter may be used several times in one phase."""
    counts: Counter[tuple[Any, ...]] = Counter()
    uses_by_key: dict[tuple[Any, ...], _Row] = {}
    for use in uses:
        key = use[:fields]
        counts[key] += 1
        uses_by_key[(*key, counts[key])] = use
    return uses_by_key


def _same(a: float, b: float) -> bool:
    return a == b or (math.isnan(a) and math.isnan(b))


def number(value: float) -> float | str:
    """Convert NaN and infinities to text, as JSON has no number for them."""
    return value if math.isfinite(value) else str(value)
