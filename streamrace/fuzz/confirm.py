"""Compares a replay with real ranks: one timing, run live, against its replay."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from streamrace.fuzz.subject import Subject
from streamrace.fuzz.verdict import in_order
from streamrace.replay.deviations import Deviation
from streamrace.replay.recording import Recording
from streamrace.replay.replayer import READ, UsedValue
from streamrace.trace.records import Phase, Probe, Probed


@dataclass(frozen=True)
class Confirmation:
    """A live run compared with a replay of the same timing.

    ``compared``: number of values that training used in both; ``same``: number of equal values before the first
    difference, in the order of the program. ``differs``: the first differing value. ``wrong``: the first value of the
    live run that differs from the reference, ``replayed``: the first in the replay. ``departed``: the host read another
    value than when recorded, so the live program may have taken another branch, and is allowed to differ after it.
    """

    compared: int
    same: int
    differs: UsedValue | None
    wrong: UsedValue | None
    replayed: UsedValue | None
    departed: bool

    @property
    def confirmed(self) -> bool:
        """Return whether both diverge in the same way (or not at all), with the same bits as far as comparable."""
        return self.wrong == self.replayed and (self.differs is None or self.departed)


def confirm(subject: Subject, deviations: Sequence[Deviation], live: Recording) -> Confirmation:
    """Compare ``live``, a recording of a run under ``subject.timing(deviations)``, with the replay."""
    outcome = subject.replayer.run(subject.timing(deviations))
    verdict = subject.judged(outcome)
    live_checksums = checksums(live)
    looks = subject.replayer.looks
    places = [place for place in in_order(looks) if looks[place].kind != READ and looks[place] in live_checksums]
    differ = [place for place in places if live_checksums[looks[place]] != outcome.checksums[place]]
    wrong = [place for place in places if live_checksums[looks[place]] != subject.reference.checksums[place]]
    return Confirmation(
        compared=len(places),
        same=places.index(differ[0]) if differ else len(places),
        differs=looks[differ[0]] if differ else None,
        wrong=looks[wrong[0]] if wrong else None,
        replayed=verdict.first,
        departed=outcome.departure is not None,
    )


def checksums(live: Recording) -> dict[UsedValue, int]:
    """Return the checksums of the values that a run's training used."""
    checksum_of: dict[UsedValue, int] = {}
    for rank, records in live.records.items():
        phase = Phase(0, 0, "init")
        looks: dict[int, UsedValue] = {}
        for record in records:
            if isinstance(record, Phase):
                phase = record
            elif isinstance(record, Probe):
                looks[record.probe] = UsedValue(rank, record.probe, *phase, record.kind, record.name)
            elif isinstance(record, Probed):
                checksum_of[looks[record.probe]] = record.checksum
    return checksum_of
