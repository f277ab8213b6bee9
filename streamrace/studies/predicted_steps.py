"""The figures of a predicted step, and their errors: how far published steps were from predictions.

``plan`` and the page of several dry runs say the same of them. It needs no torch.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import pandas as pd

from streamrace.detectors import Race
from streamrace.metrics import GroupTime, MemoryUse, StepTime
from streamrace.studies.study import Fact
from streamrace.studies.table import Cell, Column
from streamrace.trace import wording

GIB = 1 << 30
_STATES = ("primary", "secondary", "gradient", "master", "optimizer")
PARTS = ("compute_s", "within_s", "between_s", "other_s", "idle_s")


class NodeLayout(Protocol):
    """The part of a job that tells which groups lie in one node."""

    @property
    def nodes(self) -> int: ...
    @property
    def gpus(self) -> int: ...
    @property
    def hpz(self) -> int: ...


class PublishedErrors(NamedTuple):
    """Ratios of published figures to predictions from facts alone, each the least and the most of eight in ten.

    ``computing``: of the duration of a step that waits for communication at most :data:`WAITING` of its time;
    ``waiting``: of another; ``gain``: of the speed of one strategy against another on the same cluster. ``counts``: of
    the figures behind each.
    """

    computing: tuple[float, float]
    waiting: tuple[float, float]
    gain: tuple[float, float]
    counts: tuple[int, int, int]

    def of_step(self, row: Any) -> tuple[float, float]:
        """Return the ratios for a step, a row of a frame with :data:`PARTS`."""
        return self.computing if (row.within_s + row.between_s) / row.step_s <= WAITING else self.waiting


WAITING = 0.1
# Of published-steps.csv and paper-rows.csv in docs/results/data: tests/studies/test_plan.py computes them again.
ERRORS = PublishedErrors((1.02, 1.27), (1.24, 2.15), (0.58, 1.25), (121, 38, 18))
NOTE = (
    "Seconds of a step: computing; exposed communication in groups within nodes, and between nodes; the rest, in "
    "which the GPU waits for the host or copies."
)


class Gain(NamedTuple):
    """The speed of a step against that of ``over``: ``times`` as fast, with the ``errors`` of this ratio."""

    over: str
    times: float
    errors: tuple[float, float] = ERRORS.gain


def figures(step: StepTime, memory: MemoryUse, races: Sequence[Race], cluster: NodeLayout) -> dict[str, Any]:
    """Return the :data:`PARTS` of a step in seconds, and its memory in GiB, races and groups: columns of ``plan``."""
    within, between = _exposed(step.groups, cluster)
    shared = step.exposed / (within + between) if within + between else 0.0  # groups may be exposed at once
    parts = (step.compute, within * shared, between * shared, step.other, step.idle)
    return {
        **{name: part / 1e9 for name, part in zip(PARTS, parts, strict=True)},
        "peak_gib": memory.peak / GIB,
        "states_gib": sum(memory.kinds.get(kind, 0) for kind in _STATES) / GIB,
        "races": len(races),
        "manifested": sum(race.manifested for race in races),
        "groups": "; ".join(f"{group.name}: {group.exposed / 1e9:.4g} s" for group in step.groups if group.exposed),
    }


def _exposed(groups: Sequence[GroupTime], cluster: NodeLayout) -> tuple[int, int]:
    """Sum the exposed nanoseconds of groups that lie in one node, and of the others."""
    within = sum(group.exposed for group in groups if _local(group.name, cluster))
    return within, sum(group.exposed for group in groups) - within


def _local(name: str, cluster: NodeLayout) -> bool:
    members = [int(number) // cluster.gpus for number in re.findall(r"\d{1,9}", name)]  # a name may be anybody's
    if members:
        return members[0] == members[-1]
    return cluster.nodes == 1 or (name.endswith("hpz") and cluster.hpz <= cluster.gpus)


def speed(row: Any) -> str:
    """Return the duration of a step, with the range that the errors give, and its tokens per second. A clause."""
    low, high = (factor * row.step_s for factor in ERRORS.of_step(row))
    return (
        f"{row.step_s:.3g} s a step ({low:.3g} to {high:.3g} s, as published steps are to predicted ones), "
        f"{row.tokens_per_second:,.0f} tokens/s"
    )


def compared(told: Sequence[Gain], others: Sequence[Gain]) -> str:
    """Return the gains to be told, and which of the ``others`` may be as fast. A sentence without its full stop."""
    gains = (
        f"{gain.times:.2f} times as fast as {gain.over} ({_range(gain.errors, gain.times, '.2f')})" for gain in told
    )
    near = [gain.over for gain in others if gain.times * gain.errors[0] < 1]
    text = f"It is {wording.every(gains)}"
    if not near:
        return text
    return f"{text}; by these errors {wording.every(near)} may be as fast: measure {'them' if near[1:] else 'it'}, too"


def errors() -> Fact:
    """Return the errors of the predictions in words."""
    return Fact(
        "errors",
        f"eight in ten published steps took {_range(ERRORS.computing)} times as long as predicted if at most "
        f"{WAITING:.0%} is exposed communication ({ERRORS.counts[0]} steps, on A100 and H100), and "
        f"{_range(ERRORS.waiting)} times otherwise ({ERRORS.counts[1]}, on V100 and slow networks); gains of one "
        f"strategy over another were {_range(ERRORS.gain)} times the predicted ones ({ERRORS.counts[2]} pairs)",
    )


def _range(pair: tuple[float, float], times: float = 1, form: str = "g") -> str:
    return f"{pair[0] * times:{form}} to {pair[1] * times:{form}}"


def columns(frame: pd.DataFrame) -> tuple[Column, list[Column]]:
    """Return the columns for the seconds of a step and for :func:`parts`, with four digits of the longest step."""
    longest = frame.step_s.max() if len(frame) else 1.0
    form = f".{max(0, 3 - math.floor(math.log10(longest)))}f"
    names = ("computing", "in nodes", "between", "host")
    return Column("step", form), [*(Column(name, form) for name in names), Column("races", right=True)]


def parts(row: Any) -> list[Any]:
    """Return the cells of a row for the parts of a step, and its races."""
    shown = f"{row.races}, {row.manifested} shown" if row.manifested else str(row.races)
    races = Cell(shown, "bad") if row.races else "none"
    return [row.compute_s, row.within_s, row.between_s, row.other_s + row.idle_s, races]
