"""Reads the collectives of all ranks' traces, and finds the hang that ended a run, or orders that may hang."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from types import MappingProxyType

from streamrace.detectors.base import Detector
from streamrace.detectors.hang.explanation import Issues, RankState, StandstillExplanation
from streamrace.detectors.hang.queues import IssuedCall, IssuedCollective, IssuedCollectives, QueuedBehind
from streamrace.detectors.hangs import Hang, MayHang, Reversed, Stand
from streamrace.detectors.order.races import site
from streamrace.detectors.order.rendezvous import is_point_to_point
from streamrace.trace.calls import parsed
from streamrace.trace.records import Begin, Collective, End, Frame, Group, Stack, Standstill, TraceRecord

_AHEAD = 10_000  # collectives of a rank that wait for other ranks' records
_READ = frozenset({Begin, Collective, End, Group, Stack, Standstill})


class Hangs(Detector):
    """Follows the collectives of all ranks. Accepts the ranks' records in any interleaving.

    A mirrored trace (a dry run) has one rank, which the others repeat, and is not examined. ``names``: of groups; one
    that is not there is named by its ranks.
    """

    def __init__(self, names: Mapping[int, str] = MappingProxyType({})) -> None:
        self._names = names
        self._ranks: dict[int, RankState] = {}
        self._groups: dict[int, Group] = {}
        self._issued = IssuedCollectives()
        self._circles: dict[tuple[object, ...], list[QueuedBehind]] = {}  # the first one at these places
        self._counts: Counter[tuple[object, ...]] = Counter()
        self._hang: list[Hang] = []
        self.stands: tuple[Stand, ...] = ()

    def feed(self, rank: int, records: Iterable[TraceRecord]) -> None:
        state = self._ranks.setdefault(rank, RankState(rank))
        for record in records:
            if type(record) not in _READ:
                continue
            if isinstance(record, Collective):
                if record.call and not state.mirrored:
                    self._issue(state, record)
            elif isinstance(record, Stack):
                state.stacks[record.id] = record.frames
            elif isinstance(record, Group):
                self._groups.setdefault(record.group, record)
                state.groups.append(record.group)
            elif isinstance(record, Standstill):
                state.standstill = record
            elif isinstance(record, Begin):
                state.mirrored, state.dumped = (bool(record.info.get(word)) for word in ("mirrored", "dump"))
            else:
                state.ended = True

    def waits(self, rank: int) -> bool:
        return self._issued.ahead(rank) > _AHEAD

    def finish(self) -> None:
        issues = Issues(self._ranks, self._groups, self._names)
        explanation = StandstillExplanation(self._ranks, self._groups, self._issued, issues)
        self._hang = [hang] if (hang := explanation.hang()) else []
        self.stands = explanation.stands()

    def findings(self) -> list[Hang | MayHang]:
        """Return the hang, if there was one, and one finding for each circle of places."""
        issues = Issues(self._ranks, self._groups, self._names)
        return [*self._hang, *(self._may_hang(key, circle, issues) for key, circle in self._circles.items())]

    def _may_hang(self, key: tuple[object, ...], circle: list[QueuedBehind], issues: Issues) -> MayHang:
        steps = tuple(
            Reversed(step.rank, issues.of(step.rank, step.earlier), issues.of(step.rank, step.later)) for step in circle
        )
        kernels = sorted({issue.kernel for step in steps for issue in (step.earlier, step.later)})
        messages = all(kernel.endswith(("send", "recv")) for kernel in kernels)
        return MayHang("messages" if messages else "order", " ".join(kernels), steps, self._counts[key])

    def _issue(self, state: RankState, record: Collective) -> None:
        group, call = self._groups.get(record.group), parsed(record.call)
        if group is None or state.rank not in group.ranks or call is None:
            return  # a damaged trace, which the race detector refuses
        part = IssuedCall(state.rank, record.kernel, record.call, record.stack)
        elsewhere = group.origin == group.ranks and not is_point_to_point(record)  # on a further GPU of the process
        lane = record.group if elsewhere else 0
        key = record.group, record.number
        for circle in self._issued.issue(key, group.ranks, part, joined=call.joined, lane=lane):
            circle.sort(key=lambda step: step.rank)
            places = tuple(
                self._place(step.rank, collective) for step in circle for collective in (step.earlier, step.later)
            )
            self._circles.setdefault(places, circle)
            self._counts[places] += 1

    def _place(self, rank: int, collective: IssuedCollective) -> tuple[int, str, Frame | None]:
        part = collective.parts[rank]
        return rank, part.kernel, site(self._ranks[rank].stacks.get(part.stack, ()))
