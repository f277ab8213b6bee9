"""Groups the ranks of a job into classes that behave alike, and checks that, as a dry run executes one rank for all.

Ranks that agree in all that a framework queries of a rank are a *class*: first, last or between in the world, in their
node and in the groups of hpZ (or of our own engine); how much of each parameter they really hold, where sizes do not
divide evenly (ZeRO-3's shards are ceil(n / ranks) elements, the last shards are padding or nothing:
deepspeed/runtime/zero/partition_parameters.py, ``_partition_param``); and whether a timing slows them. One
representative of each class runs, and so does a second member, drawn at random. If their traces are equal in the normal
form (:mod:`streamrace.metrics.rank_comparison`) the class was checked, not assumed; if not, the first operation that
differs is reported.

These runs use a model with few layers, if its number of layers can be set: the behaviour of a rank in a layer does not
depend on the number of layers. A class of a single rank has no second member to compare.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Self

from streamrace.metrics import BusyMetrics, MemoryMetrics
from streamrace.metrics.rank_comparison import LikenessMetrics, described
from streamrace.scenarios import rehearsal
from streamrace.scenarios.job import Job
from streamrace.scenarios.messages import ModelBuilt, RehearsalReport
from streamrace.studies.process_pool import ProcessPool, side_by_side
from streamrace.trace.files import TraceReader, file_of

LAYERS = 2
"""Layers of the models that are compared: the second is the first that follows another layer."""

Tell = Callable[[str], None]


@dataclass(frozen=True)
class RankClass:
    """Ranks that are expected to behave alike. ``what``: their common properties, in words."""

    what: str
    members: tuple[int, ...]

    @property
    def second(self) -> int | None:
        """Return a member other than the first, drawn at random from a fixed seed; None if there is none."""
        others = self.members[1:]
        return random.Random(f"{self.what}/{len(others)}").choice(others) if others else None


@dataclass(frozen=True)
class CheckedClass:
    """A class after its comparison. ``difference``: the first operation of the second member that differs from the
    representative's; empty if equal.

    ``from_first``: the same of the representative against rank 0, ignoring the roots of broadcasts. ``step_ns``: the
    representative's last step, nanoseconds, and ``peak``: its bytes, both of the model with few layers.
    """

    ranks: RankClass
    difference: str
    from_first: str
    step_ns: int
    peak: int

    @property
    def equal(self) -> bool:
        return not self.difference


@dataclass(frozen=True)
class CheckedClasses:
    """All classes of a job's ranks. ``layers``: of the models that were compared; None: the whole model."""

    classes: tuple[CheckedClass, ...]
    layers: int | None

    @property
    def compared(self) -> int:
        """Return the number of second members that were compared with their representatives."""
        return sum(checked.ranks.second is not None for checked in self.classes)

    @property
    def unequal(self) -> tuple[CheckedClass, ...]:
        """Return the classes whose members differ."""
        return tuple(checked for checked in self.classes if not checked.equal)

    @property
    def slowest(self) -> CheckedClass:
        """Return the class with the longest step of its own: the others wait for it."""
        return max(self.classes, key=lambda checked: checked.step_ns)

    def as_dict(self) -> dict[str, Any]:
        """Return a JSON-ready mapping."""
        return {
            "layers": self.layers,
            "compared": self.compared,
            "classes": [
                {
                    "what": checked.ranks.what,
                    "ranks": len(checked.ranks.members),
                    "representative": checked.ranks.members[0],
                    "second": checked.ranks.second,
                    "difference": checked.difference,
                    "from_rank_0": checked.from_first,
                    "step_ns": checked.step_ns,
                    "peak": checked.peak,
                }
                for checked in self.classes
            ],
        }


def classes(job: Job, sizes: Sequence[int]) -> list[RankClass]:
    """Return the classes of ``job``'s ranks, by their first members. ``sizes``: elements of each of its parameters."""
    group = job.sharding_group if job.sharding else job.hpz
    slow = {key for key in job.slow if key.startswith(("rank:", "host:"))}
    ranks_of: dict[tuple[Any, ...], list[int]] = {}
    for rank in range(job.ranks):
        places = [_place("world", rank, job.ranks), _place("node", rank % job.gpus, job.gpus)]
        if 1 < group < job.ranks and group != job.gpus:
            places.append(_place("group", rank % group, group))
        shards = [_elements(size, rank, job.ranks) for size in sizes] if job.stage == 3 or job.sharding else []
        if 1 < group < job.ranks:
            shards += [_elements(size, rank % group, group) for size in sizes]
        straggles = tuple(sorted(key for key in slow if key.partition(":")[2] == str(rank)))
        ranks_of.setdefault((tuple(places), tuple(shards), straggles), []).append(rank)
    return [RankClass(_description(*key), tuple(members)) for key, members in ranks_of.items()]


def check(job: Job, folder: Path, sizes: Sequence[int], tell: Tell = lambda text: None) -> CheckedClasses:
    """Run each class's representative and second member and compare them. ``folder`` is removed afterwards.

    Raises :class:`streamrace.scenarios.base.ScenarioError` for a job that cannot be rehearsed,
    :class:`streamrace.device.ranks.cluster.RankFailed` when a rank breaks.
    """
    with Comparison(job, folder, tell) as comparison:
        return comparison.result(sizes)


class Comparison:
    """Runs :func:`check` in parallel with other work: :meth:`begin` needs no knowledge of the model. :meth:`result`
    runs the ranks that have not run by then. ``folder`` is removed at the end.
    """

    def __init__(self, job: Job, folder: Path, tell: Tell = lambda text: None) -> None:
        builtin_model = ":" not in job.model or Path(job.model).exists()
        self.job, self.folder, self.layers = job, folder, LAYERS if builtin_model else None
        self.read: dict[int, RankRead] = {}
        self._tell = tell
        self._rehearsed = partial(_rehearsed, job, folder, self.layers)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)

    def begin(self, pool: ProcessPool) -> None:
        """Submit rank 0 to ``pool``, as the others need its broadcasts, and then the other ranks that are compared.

        ``pool`` must be done before :meth:`result` is called.
        """

        def others(_: int, first: RankRead) -> None:
            self.read[0] = first
            missing = self._missing(classes(self.job, first.sizes))
            pool.begin(self._rehearsed, missing, then=self.read.__setitem__)

        if 0 in self.read:
            others(0, self.read[0])
        else:
            pool.begin(self._rehearsed, [0], then=others)

    def result(self, sizes: Sequence[int]) -> CheckedClasses:
        """Return the comparison for a job with parameters of these sizes. Raises as :func:`check`."""
        of = classes(self.job, sizes)
        on = f" on {self.layers} layers" if self.layers else ""
        self._tell(f"{len(of)} classes of ranks: comparing {len(_compared(of))} ranks{on}")
        if 0 not in self.read:
            self.read[0] = self._rehearsed(0)
        self.read |= side_by_side(self._rehearsed, self._missing(of))
        nodes_of = self.job.timing().nodes_of
        return CheckedClasses(tuple(_checked(group, self.read, nodes_of) for group in of), self.layers)

    def _missing(self, of: Sequence[RankClass]) -> list[int]:
        return [rank for rank in _compared(of) if rank not in self.read]


def _compared(of: Sequence[RankClass]) -> list[int]:
    """Return the ranks that are compared."""
    return sorted({rank for group in of for rank in (group.members[0], group.second) if rank is not None})


def _rehearsed(job: Job, folder: Path, layers: int | None, rank: int) -> RankRead:
    sizes: list[int] = []

    def receive(report: RehearsalReport) -> None:
        if isinstance(report, ModelBuilt):
            sizes.extend(report.sizes)

    rehearsal.run(job, folder=folder, receive=receive, ranks=(rank,), layers=layers)
    return RankRead(file_of(folder / "trace", rank), job.timing().nodes_of, sizes)


class RankRead:
    """Metrics of one rank's trace. ``sizes``: of its model's parameters."""

    def __init__(self, path: Path, nodes_of: Sequence[int], sizes: Sequence[int]) -> None:
        self.path, self.sizes = path, tuple(sizes)
        alike, but_roots = LikenessMetrics(nodes_of), LikenessMetrics(nodes_of, roots=False)
        busy, memory = BusyMetrics(), MemoryMetrics()
        reader = TraceReader(path)
        try:
            records = list(reader.read())
        finally:
            reader.close()
        for metric in (alike, but_roots, busy, memory):
            metric.feed(records)
        self.likeness = {True: alike.result(), False: but_roots.result()}
        self.step_ns = busy.result().steps[-1].time
        self.peak = memory.result().peak


def _checked(rank_class: RankClass, reads: dict[int, RankRead], nodes_of: Sequence[int]) -> CheckedClass:
    first = rank_class.members[0]
    first_read = reads[first]
    difference = "" if rank_class.second is None else _difference(reads, first, rank_class.second, nodes_of)
    from_first = _difference(reads, 0, first, nodes_of, roots=False)
    return CheckedClass(rank_class, difference, from_first, first_read.step_ns, first_read.peak)


def _difference(reads: dict[int, RankRead], a: int, b: int, nodes_of: Sequence[int], *, roots: bool = True) -> str:
    at = reads[a].likeness[roots].parts_from(reads[b].likeness[roots])
    if at is None:
        return ""
    does = [described(reads[rank].path, nodes_of, at, roots=roots) for rank in (a, b)]
    return f"rank {a}: {does[0]}; rank {b}: {does[1]}"


def _place(of: str, index: int, count: int) -> str:
    if count == 1:
        return ""
    return f"first of its {of}" if index == 0 else f"last of its {of}" if index == count - 1 else ""


def _elements(size: int, rank: int, ranks: int) -> int | str:
    """Return how much of a parameter the rank really holds: all of its shard, nothing, or a number of elements."""
    shard = -(-size // ranks)
    elements = min(max(size - rank * shard, 0), shard)
    return "all" if elements == shard else "nothing" if elements == 0 else elements


def _description(places: Sequence[str], shards: Sequence[int | str], straggles: Sequence[str]) -> str:
    parts = [place.replace("its world", "all") for place in places if place] or ["between others"]
    if any(share != "all" for share in shards):
        padded = any(isinstance(share, int) for share in shards)
        parts.append("with padding in its shards" if padded else "without a shard of small parameters")
    return ", ".join([*parts, *(f"slow ({key})" for key in straggles)])
