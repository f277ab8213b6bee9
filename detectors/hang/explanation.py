"""Explains a standstill: what does not fit between which two ranks, and where they made the same call last."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from streamrace.detectors.hang.queues import IssuedCall, IssuedCollective, IssuedCollectives
from streamrace.detectors.hangs import MESSAGES, Hang, HangKind, Issue, Stand, ranks
from streamrace.trace import wording
from streamrace.trace.calls import AgreedCall, parsed
from streamrace.trace.records import Frame, Group, Standstill


@dataclass
class RankState:
    """The state of a rank. ``ended``: its trace has an end, so the program ended in good order there.

    ``dumped``: its records are of a dump, which does not tell where a rank is that stands in no collective. ``groups``:
    those whose collectives it has issued, in the order of their first one.
    """

    rank: int
    mirrored: bool = False
    dumped: bool = False
    ended: bool = False
    standstill: Standstill | None = None
    stacks: dict[int, tuple[Frame, ...]] = field(default_factory=dict)
    groups: list[int] = field(default_factory=list)


class Issues:
    """Describes the calls of these ranks. ``names``: of groups, instead of their ranks."""

    def __init__(self, ranks: Mapping[int, RankState], groups: Mapping[int, Group], names: Mapping[int, str]) -> None:
        self._ranks = ranks
        self._names: dict[int, str] = {}
        by_ranks: dict[tuple[int, ...], list[int]] = {}
        for state in [ranks[rank] for rank in sorted(ranks)]:
            for group in state.groups:
                if group not in by_ranks.setdefault(groups[group].ranks, []):
                    by_ranks[groups[group].ranks].append(group)
        for same in by_ranks.values():
            for place, group in enumerate(same, 1):
                self._names[group] = names.get(group) or self._name(groups[group], place, len(same))

    @staticmethod
    def _name(group: Group, place: int, of: int) -> str:
        return ranks(group.ranks) if of == 1 else f"the {wording.ordinal(place)} of {of} groups of {ranks(group.ranks)}"

    def of(self, rank: int, collective: IssuedCollective) -> Issue:
        """Return the rank's call of the collective."""
        part, state = collective.parts[rank], self._ranks[rank]
        call = parsed(part.call)
        text, (group, number) = str(call or part.kernel), collective.key
        name = self._names[group]
        if call is not None and call.kind in ("send", "recv"):
            source, target = (collective.members * 2)[:2]
            text = f"{text} {f'to rank {target}' if call.kind == 'send' else f'from rank {source}'}"
            name = f"{MESSAGES} from rank {source} to rank {target}"
        return Issue(rank, text, part.kernel, name, number, state.stacks.get(part.stack, ()))


class StandstillExplanation:
    """The standstill of these ranks, whose collectives in ``issued`` did not all take place."""

    def __init__(
        self, ranks: Mapping[int, RankState], groups: Mapping[int, Group], issued: IssuedCollectives, issues: Issues
    ) -> None:
        self._ranks, self._groups, self._issued, self._issues = ranks, groups, issued, issues
        self._at: dict[int, IssuedCollective] = {}
        for rank, state in sorted(ranks.items()):
            if state.standstill is not None and (collective := self._met(state, state.standstill)):
                self._at[rank] = collective

    def _met(self, state: RankState, stands: Standstill) -> IssuedCollective | None:
        """Return the collective that cannot take place, with this rank's part, which the trace may lack."""
        key, call = (stands.group, stands.number), parsed(stands.call)
        group = self._groups.get(stands.group)
        if call is None or group is None or state.rank not in group.ranks:
            return None
        collective = self._issued.open.setdefault(key, IssuedCollective(key, group.ranks))
        if state.rank not in collective.parts:
            collective.parts[state.rank] = IssuedCall(state.rank, f"nccl::{call.kind}", stands.call, stands.stack)
        return collective

    def hang(self) -> Hang | None:
        """Return the hang; None if no rank stood still, or only because another one failed."""
        return self._mismatch() or self._ended() or self._circle()

    def stands(self, beside: IssuedCollective | None = None) -> tuple[Stand, ...]:
        """Return the place of each rank that is known. ``beside``: a collective whose group's last one is named."""
        return tuple(
            self._stand(rank, self._at[rank]) if rank in self._at else self._ended_stand(rank, beside)
            for rank, state in sorted(self._ranks.items())
            if rank in self._at or state.ended or state.dumped
        )

    def _mismatch(self) -> Hang | None:
        """Return calls that differ. In dumps the first ones count: on hardware, ranks may come past them."""
        dumped = any(state.dumped for state in self._ranks.values())
        past = self._issued.open.values() if dumped and self._at else ()
        for collective in (*past, *sorted(self._at.values(), key=lambda collective: collective.key[1])):
            if differing := collective.mismatch():
                one, other, properties = differing
                return self._hang(
                    "mismatch", collective, self._stand(one, collective), self._stand(other, collective), properties
                )
        return None

    def _ended(self) -> Hang | None:
        for rank, collective in self._at.items():
            for other in self._lacks(rank):
                state = self._ranks.get(other)
                if state is not None and (state.ended or (state.dumped and other not in self._at)):
                    kind: HangKind = "ended" if state.ended else "behind"
                    return self._hang(
                        kind, collective, self._stand(rank, collective), self._ended_stand(other, collective)
                    )
        return None

    def _circle(self) -> Hang | None:
        """Follow from each rank one that it waits for, until a rank repeats."""
        for start in self._at:
            way = [start]
            while True:
                lacks = [rank for rank in self._lacks(way[-1]) if rank in self._at]
                if not lacks:
                    break
                if lacks[0] in way:
                    one, other = way[-1], lacks[0]
                    pair = sorted((one, other))
                    issued = [self._at[rank] for rank in way[way.index(other) :]]
                    messages = all(len(_kinds(collective) - {"send", "recv"}) == 0 for collective in issued)
                    first, second = (self._stand(rank, self._at[rank]) for rank in pair)
                    return self._hang("messages" if messages else "order", self._at[pair[0]], first, second)
                way.append(lacks[0])
        return None

    def _hang(
        self, kind: HangKind, collective: IssuedCollective, first: Stand, second: Stand, differing: tuple[str, ...] = ()
    ) -> Hang:
        last = [self._last(stand.rank, collective) for stand in (first, second)]
        places = [issue.stack[:1] for issue in last if issue is not None]
        same = len(places) == 2 and places[0] == places[1] and bool(places[0])
        kernel = first.issue.kernel if first.issue is not None else ""
        return Hang(kind, kernel, first, second, self.stands(collective), differing, places[0][0] if same else None)

    def _lacks(self, rank: int) -> tuple[int, ...]:
        stands = self._ranks[rank].standstill
        return stands.lacks if stands is not None else ()

    def _stand(self, rank: int, collective: IssuedCollective) -> Stand:
        state = self._ranks[rank]
        host = state.stacks.get(state.standstill.stack, ()) if state.standstill else ()
        return Stand(rank, self._issues.of(rank, collective), self._lacks(rank), host)

    def _ended_stand(self, rank: int, collective: IssuedCollective | None) -> Stand:
        return Stand(rank, None, last=self._last(rank, collective), ended=self._ranks[rank].ended)

    def _last(self, rank: int, collective: IssuedCollective | None) -> Issue | None:
        """Return the rank's part in the last collective of the group in which all ranks agreed."""
        common = self._issued.common.get(collective.key[0]) if collective else None
        return self._issues.of(rank, common) if common and rank in common.parts else None


def _kinds(collective: IssuedCollective) -> set[str]:
    calls: list[AgreedCall] = [call for part in collective.parts.values() if (call := parsed(part.call))]
    return {call.kind for call in calls}
