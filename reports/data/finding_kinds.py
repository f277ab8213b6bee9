"""Declares the kinds of findings on a program besides races and wrong answers: all that reports say of each.

A new kind is a finding of a detector and an entry here, with its field in
:class:`streamrace.reports.data.findings.Basis`, its verdict there, and its rule in ``reports/formats/rules.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from streamrace.detectors import GraphMemory, Hang, KernelDefect, MayHang, Uninitialised
from streamrace.detectors.order.races import site
from streamrace.reports.data.schema import KeptSuppression
from streamrace.trace.records import Frame
from streamrace.trace.untrusted import visible


@dataclass(frozen=True)
class KeptUninitialised(Uninitialised):
    """An uninitialised use, and why it does not count. ``says``: its sentence."""

    says: str = ""
    suppressed: KeptSuppression | None = None


@dataclass(frozen=True)
class KeptKernelDefect(KernelDefect):
    """A defect inside of a kernel, and why it does not count. ``says``: its sentence; ``warning``: it never counts."""

    says: str = ""
    warning: bool = False
    suppressed: KeptSuppression | None = None


@dataclass(frozen=True)
class KeptGraphMemory(GraphMemory):
    """A use of a graph's memory, and why it does not count. ``says``: its sentence."""

    says: str = ""
    suppressed: KeptSuppression | None = None


@dataclass(frozen=True)
class KeptHang(Hang):
    """A hang, and why it does not count. ``says``: its sentences."""

    says: str = ""
    suppressed: KeptSuppression | None = None


@dataclass(frozen=True)
class KeptMayHang(MayHang):
    """A possible hang, and why it does not count. ``says``: its sentences."""

    says: str = ""
    suppressed: KeptSuppression | None = None


class Precedence(Enum):
    """When a kind decides the verdict: first of all, behind races, or only if all of the program was seen."""

    FIRST = "first"
    BEHIND_RACES = "behind races"
    ALL_SEEN = "all seen"


@dataclass(frozen=True)
class FindingKind:
    """A kind of finding. ``name``: its verdict, its rule, and the first part of its fingerprint.

    ``field``: where a file has it. ``found``: the detector's class; ``kept``: the file's. ``title``: begins the
    verdict's sentence, and ``clause``, of the first finding, ends it; ``ordered`` stands between them (empty: that all
    accesses are ordered). ``heading`` and ``introduction``: of the list on a page; ``warnings``: the heading in the
    terminal of those that only warn. ``meaning``: the verdict's, for the glossary. ``marks``: the frames by which a
    finding is known again; ``calls``: all that led to it. ``details``: further clauses on a finding. ``status``: the
    exit status of the verdict.
    """

    name: str
    field: str
    found: type[Any]
    kept: type[Any]
    title: str
    clause: Callable[[Any], str]
    heading: str
    introduction: str
    meaning: str
    marks: Callable[[Any], Sequence[Frame | None]]
    calls: Callable[[Any], Sequence[Frame]]
    ordered: str = ""
    warnings: str = ""
    details: Callable[[Any], Sequence[str]] = lambda _: ()
    precedence: Precedence = Precedence.ALL_SEEN
    status: int = 5

    def keep(self, finding: Any, suppressed: KeptSuppression | None) -> Any:
        """Return the finding as a file has it."""
        more = {"warning": finding.warns} if hasattr(finding, "warns") else {}
        return self.kept(**vars(finding), says=finding.sentence(), suppressed=suppressed, **more)

    def rule(self, finding: Any) -> str:
        """Return the rule of a finding."""
        return f"{self.name}-hazard" if warns(finding) else self.name


_OF_KERNELS = {
    "outside": "a kernel accesses memory outside of its arguments",
    "repeated": "one store of a kernel has two values for an element",
}
_OF_GRAPHS = {
    "freed": "memory that a CUDA graph uses was freed",
    "overwritten": "a replay of a CUDA graph overwrote another tensor",
    "kept": "results of a CUDA graph are kept that later replays overwrite",
}

_OF_HANGS = {
    "mismatch": "ranks call different things as one collective",
    "ended": "ranks wait for one that has ended",
    "behind": "ranks wait for one that has not come to their collective",
    "order": "ranks wait for each other in collectives of different groups",
    "messages": "ranks wait for each other in sends and receives",
}
_OF_ORDERS = {
    "order": "collectives of several groups are issued in different order",
    "messages": "sends and receives are issued in an order in which each waits for the other",
}

KINDS = (
    FindingKind(
        "uninitialised",
        "uninitialised",
        Uninitialised,
        KeptUninitialised,
        title="Uninitialised",
        clause=lambda read: f"memory that nobody wrote reaches {visible(read.where, lines=False)}",
        heading="Uninitialised",
        introduction="With other bytes where nothing wrote, the program sees something else.",
        meaning="All is ordered, but a result depends on memory that nothing wrote.",
        marks=lambda read: (site(read.stack), site(read.allocated)),
        calls=lambda read: (*read.stack, *read.allocated),
    ),
    FindingKind(
        "kernel",
        "kernels",
        KernelDefect,
        KeptKernelDefect,
        title="Kernel",
        ordered="all is in order between streams",
        clause=lambda one: _OF_KERNELS.get(
            one.kind, "nothing orders two programs of a kernel that use the same memory"
        ),
        heading="Inside of kernels",
        warnings="Warnings about kernels",
        introduction="The programs of a grid may run at once and in any order.",
        meaning="Streams are in order, but programs of one kernel use the same memory, or memory that is not its own.",
        marks=lambda one: (one.first, one.second),
        calls=lambda one: tuple(place for place in (one.second, one.first, *one.stack) if place.file),
    ),
    FindingKind(
        "graph-memory",
        "graph_memory",
        GraphMemory,
        KeptGraphMemory,
        title="Graph memory",
        clause=lambda use: _OF_GRAPHS[use.kind],
        heading="Memory of CUDA graphs",
        introduction="A graph has its memory by address, and another tensor has it now.",
        meaning="All is ordered, but a CUDA graph uses memory that another tensor has.",
        marks=lambda use: (site(use.stack), site(use.allocated)),
        calls=lambda use: (*use.stack, *use.allocated, *use.other_stack),
    ),
    FindingKind(
        "hang",
        "hangs",
        Hang,
        KeptHang,
        title="Hang",
        ordered="no rank can go on",
        clause=lambda hang: _OF_HANGS[hang.kind],
        heading="The hang",
        introduction="Each of the ranks waits, or has ended; none can go on.",
        meaning="No rank can go on: they wait for each other, or for one that has ended or calls something else.",
        marks=lambda hang: [site(stand.issue.stack) if stand.issue else None for stand in (hang.first, hang.second)],
        calls=lambda hang: hang.frames,
        details=lambda hang: hang.details(),
        precedence=Precedence.FIRST,
        status=6,
    ),
    FindingKind(
        "may-hang",
        "may_hang",
        MayHang,
        KeptMayHang,
        title="May hang",
        ordered="all ranks came to their end",
        clause=lambda circle: _OF_ORDERS[circle.kind],
        heading="Orders that may hang",
        introduction="Here all collectives took place. Where a GPU runs one of them at a time, they would not.",
        meaning="Ranks issue collectives of several groups in different order, which may hang on other hardware.",
        marks=lambda circle: [site(issue.stack) for step in circle.circle for issue in (step.earlier, step.later)],
        calls=lambda circle: circle.frames,
        precedence=Precedence.BEHIND_RACES,
    ),
)
"""In the order of their gravity among those of one precedence: the first one that was found is the verdict."""


def warns(finding: Any) -> bool:
    """Check whether a finding only warns, and does not count for the verdict."""
    return getattr(finding, "warns", False)
