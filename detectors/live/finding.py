"""Describes findings: one for all ranks, as data that can be printed and stored."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from enum import StrEnum
from typing import Any, NamedTuple

from streamrace.trace import wording

PHASES = ("forward", "backward", "step")
BEFORE = "before the step"  # detail of a parameter: as the passes used it, and not as the optimizer left it
_FEW = 8


class Kind(StrEnum):
    """The kind of values that are probed."""

    INPUT = "input"  # a tensor of the batch
    TAKEN = "input of a module"  # not a module's output: a sum of two outputs, for example
    OUTPUT = "output"  # returned by a module
    LOSS = "loss"
    OUTPUT_GRADIENT = "output gradient"  # with respect to a module's output
    GRADIENT = "gradient"  # with respect to a parameter, of one micro-batch, before ranks are averaged
    PARAMETER = "parameter"  # as training uses it: gathered under ZeRO-3
    PRIMARY = "primary partition"
    SECONDARY = "secondary partition"
    OPTIMIZER = "optimizer state"


class Cause(StrEnum):
    """The origin of the first bad value."""

    DATA = "data"
    FORWARD = "forward"
    LOSS = "loss"
    GRADIENT = "gradient"
    OPTIMIZER = "optimizer state"
    STEP = "step"  # good gradients and optimizer state, bad parameters
    RACE = "race"
    STALE = "stale"
    UNCOVERED = "uncovered"
    CORRUPTION = "corruption"  # memory changed between two probes, with no step between them, and stayed so
    GATHER = "all-gather"  # good where it was read, bad where it arrived
    SHARDING = "race, stale or uncovered"  # bad after the all-gather, good before; too little was probed to know why


PROVEN = {Cause.RACE, Cause.STALE, Cause.UNCOVERED, Cause.CORRUPTION, Cause.GATHER, Cause.SHARDING}  # by checksums


class ProbePoint(NamedTuple):
    """One watched place. ``module`` and ``parameter`` are paths in the model, or ''; ``detail`` a name within them."""

    kind: Kind
    module: str = ""
    parameter: str = ""
    detail: str = ""

    def __str__(self) -> str:
        name = self.parameter or self.module or "the model"
        if self.kind is Kind.TAKEN:
            return f"input {self.detail} of {name}" if self.detail else f"input of {name}"
        return f"{self.kind} {self.detail} of {name}" if self.detail else f"{self.kind} of {name}"


class ProbeResult(NamedTuple):
    """The measurement at a point: counts of bad values; ``low`` and ``high`` of the good values (NaN: no good values).

    ``order``: place in this rank's order of execution within the step.
    """

    point: ProbePoint
    step: int
    micro_batch: int
    phase: str
    order: int
    nan: int
    plus_inf: int
    minus_inf: int
    low: float
    high: float
    numel: int
    beyond: bool = False  # the bound

    @property
    def bad(self) -> bool:
        return bool(self.nan or self.plus_inf or self.minus_inf or self.beyond)


@dataclass(frozen=True, eq=False)
class Finding:
    """The first bad point, over all ranks, and its cause.

    ``rank`` has it first; ``ranks`` all ranks that report something bad in that step. ``part``: for a sharded
    parameter, the rank in its group whose part is wrong. ``nan``, ``inf``: how many of ``numel`` values; both
    0: finite and wrong, or ``beyond`` the bound. ``low``, ``high``: the good values' extremes (NaN: none, or unknown).
    ``unknown``: the point's values were not probed, and others are bad.
    ``version``: the step whose values a stale part holds (-1: not known). ``evidence``: sentences.
    ``spread``: the bad points that follow, in order.
    """

    cause: Cause
    kind: Kind
    step: int
    micro_batch: int
    phase: str
    order: int
    rank: int
    ranks: tuple[int, ...]
    module: str
    parameter: str
    detail: str = ""
    part: int = -1
    nan: int = 0
    inf: int = 0
    numel: int = 0
    low: float = math.nan
    high: float = math.nan
    version: int = -1
    beyond: bool = False
    unknown: bool = False
    evidence: tuple[str, ...] = ()
    spread: tuple[str, ...] = ()

    @property
    def place(self) -> tuple[int, int, int, int, int]:
        """Return a key that sorts findings by execution, across ranks too."""
        return (self.step, self.micro_batch, PHASES.index(self.phase), self.order, self.rank)

    def sentence(self) -> str:
        """Return a sentence for the user that describes the finding."""
        point = ProbePoint(self.kind, self.module, self.parameter, self.detail)
        part = f", the part of rank {self.part} of its group" if self.part >= 0 else ""
        bad = wording.every(
            text for count, text in ((self.nan, f"{self.nan} NaN"), (self.inf, f"{self.inf} Inf")) if count
        )
        problem = f"{bad} of {self.numel} values" if bad else "finite, and wrong"
        if self.unknown:
            problem = "wrong, and its values were not watched"
        extremes = f"from {self.low:.4g} to {self.high:.4g}" if math.isfinite(self.low + self.high) else ""
        if self.beyond:
            problem = " and ".join(filter(None, (bad, f"beyond the bound, {extremes}")))
        elif extremes:
            problem += f" (good ones {extremes})"
        return (
            f"{_MEANING[self.cause]} Step {self.step}, micro-batch {self.micro_batch}, {self.phase}, "
            f"rank {self.rank}: {point}{part}: {problem}."
        )

    def __eq__(self, other: object) -> bool:
        """Compare all fields, unknown extremes (NaN) as equal, although NaN does not equal itself."""
        return isinstance(other, Finding) and self.as_dict() == other.as_dict()

    def __hash__(self) -> int:
        return hash((self.place, self.module, self.parameter))

    def as_dict(self) -> dict[str, Any]:
        """Return JSON-ready data: an extreme that is not finite becomes None."""
        data = asdict(self)
        for name in ("low", "high"):
            if not math.isfinite(data[name]):
                data[name] = None
        return data

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Finding:
        """Reverse :meth:`as_dict`. Raises ValueError for anything else."""
        known = {field.name for field in fields(cls)}
        if not isinstance(data, Mapping) or not known.issuperset(data):
            raise ValueError("not a finding of the watch")
        values = dict(data)
        try:
            values["cause"], values["kind"] = Cause(values["cause"]), Kind(values["kind"])
            for name in ("low", "high"):
                values[name] = math.nan if values.get(name) is None else float(values[name])
            for name in ("step", "micro_batch", "order", "rank", "part", "nan", "inf", "numel", "version"):
                values[name] = int(values.get(name, 0))
            for name in ("beyond", "unknown"):
                values[name] = bool(values.get(name, False))
            values["ranks"] = tuple(int(rank) for rank in values["ranks"])
            for name in ("phase", "module", "parameter", "detail"):
                values[name] = str(values.get(name, ""))
            for name in ("evidence", "spread"):
                values[name] = tuple(str(line) for line in values.get(name, ()))
            if values["phase"] not in PHASES:
                raise ValueError(f"unknown phase '{values['phase']}'")
            return cls(**values)
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"not a finding of the watch: {error}") from None


_MEANING = {
    Cause.DATA: "Bad data.",
    Cause.FORWARD: "The forward pass makes the first bad value.",
    Cause.LOSS: "The loss is bad, though all it is computed from is good.",
    Cause.GRADIENT: "The backward pass makes the first bad value.",
    Cause.OPTIMIZER: "Optimizer state is bad, though the gradients were good.",
    Cause.STEP: "The optimizer step makes bad parameters.",
    Cause.RACE: "Race: the all-gather reads a partition before the copy into it is done.",
    Cause.STALE: "Stale: a partition holds an older version of the parameter.",
    Cause.UNCOVERED: "Uncovered: a part of a partition is read that nothing wrote.",
    Cause.CORRUPTION: "Memory changed between two probes, with no step between them.",
    Cause.GATHER: "The all-gather delivers other values than those it read.",
    Cause.SHARDING: "A parameter is good in its partition and bad after the all-gather: race, stale or uncovered.",
}


def first_few(of_ranks: Sequence[object]) -> str:
    """Return a list of ranks as text: all of a few, of many the first, and the number of the others."""
    return wording.few(of_ranks, _FEW)
