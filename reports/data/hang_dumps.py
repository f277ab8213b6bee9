"""Holds the result of ``streamrace hang``: what the dumps of a cluster's flight recorder tell of a hang."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from streamrace.detectors import Hang
from streamrace.detectors.hangs import Stand, ranks
from streamrace.reports.data import branches, sources
from streamrace.reports.data.finding_kinds import KINDS, KeptHang, KeptMayHang
from streamrace.reports.data.schema import JsonFile

_KINDS = {kind.name: kind for kind in KINDS}


class HangInDumps(JsonFile):
    """The findings. ``stands``: clauses, where each rank stands; ``unseen``: what the dumps do not tell."""

    NAME = "hang.json"
    format: str = "stream-race-hang"
    verdict: str
    sentence: str
    hangs: list[KeptHang] = []
    may_hang: list[KeptMayHang] = []
    stands: list[str] = []
    unseen: list[str] = []

    @property
    def status(self) -> int:
        """The exit status, as that of ``streamrace check``; 0 if nothing was found."""
        return _KINDS[self.verdict].status if self.verdict in _KINDS else 0

    @classmethod
    def of(cls, found: Sequence[Any], stands: Sequence[Stand], unseen: Sequence[str]) -> HangInDumps:
        """Return what a detector of hangs found. Where ranks part is looked up in this machine's files."""
        hangs = [replace(one, parted=branches.parted(one, _lines)) for one in found if isinstance(one, Hang)]
        circles = [one for one in found if not isinstance(one, Hang)]
        kept = {
            name: [_KINDS[name].keep(one, None) for one in some]
            for name, some in (("hang", hangs), ("may-hang", circles))
        }
        verdict = next((name for name, some in kept.items() if some), "none found")
        if verdict in kept:
            first, *more = kept[verdict]
            clause = f"{_KINDS[verdict].clause(first)}{f' (and {len(more)} more)' if more else ''}"
            sentence = f"{_KINDS[verdict].title}: {clause}."
        elif waiting := [stand.rank for stand in stands if stand.issue is not None]:
            where = f"{ranks(waiting)} {'stands' if len(waiting) == 1 else 'stand'} in what has not completed"
            sentence = f"No cause was found: {where}, and the calls that the dumps hold fit together."
        else:
            sentence = "No hang was found in what the dumps hold."
        return cls(
            verdict=verdict,
            sentence=sentence,
            hangs=kept["hang"],
            may_hang=kept["may-hang"],
            stands=[stand.sentence() for stand in (hangs[0].stands if hangs else stands)],
            unseen=list(unseen),
        )


def _lines(file: str) -> list[str] | None:
    return sources.lines_of(file, ()) if file.endswith(".py") else None  # a dump may name any file
