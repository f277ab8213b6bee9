"""Selects one race of a run's folder, by its number or by its places."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from streamrace.detectors import Race
from streamrace.detectors.confidence.waits import WaitSite
from streamrace.detectors.places import at, between
from streamrace.device.scripts import WrongUse
from streamrace.trace import wording
from streamrace.trace.files import file_of

if TYPE_CHECKING:
    from streamrace.reports.data.loading import ReadRun
    from streamrace.reports.data.schema import Judged

_LISTED = 12  # races in a sentence
BETWEEN = ","  # separates two places


@dataclass(frozen=True)
class Chosen:
    """A race of the run in ``folder``, numbered from 1. ``trace``: the folder of its traces.

    ``sites``: the pair is fragile: ordered by these waits, which exist for another reason. Empty: the pair is a race.
    """

    folder: Path
    run: ReadRun
    number: int
    race: Judged
    sites: tuple[WaitSite, ...] = ()

    @property
    def trace(self) -> Path:
        return self.folder / "trace"

    @property
    def asked(self) -> Mapping[str, Any]:
        """Return the request: for a program of the user's own ``program``, ``ranks``, ``slow``, ``timing``,
        ``packages`` (:func:`streamrace.repro.sessions.folders.request`).
        """
        return self.run.file.scenario

    @property
    def own(self) -> bool:
        """Return whether the run is of ``streamrace check``, not of a scenario."""
        return self.run.file.checked is not None

    @property
    def traced(self) -> bool:
        """Return whether the trace of the rank of its first occurrence exists."""
        return file_of(self.trace, self.race.examples[0].rank if self.race.examples else 0).is_file()


def chosen(folder: Path, race: str, *, traced: bool = True, held: bool = False) -> Chosen:
    """Return the race that ``race`` names in a run's folder: by number (as 'streamrace check' counts), or by place, as
    file.py:function or file.py:line, or both places with a comma between them.

    ``traced``: require that the run still has its traces. ``held``: if there is no race, select among the fragile
    pairs, counting from 1. Raises :class:`WrongUse`, :class:`streamrace.reports.data.schema.ReportError`.
    """
    from streamrace.reports.data import dry, loading

    if dry.is_dry(folder):
        raise WrongUse(f"{folder} is a dry run of a job: 'streamrace report' makes a page of its races")
    run = loading.load(folder)
    pairs: list[tuple[Judged, tuple[WaitSite, ...]]] = [(judged, ()) for judged in run.file.races]
    if held and not pairs and run.file.basis:
        for group in run.file.basis.held:
            pairs += [(judged, tuple(WaitSite(site.how, site.frame) for site in group.sites)) for judged in group.races]
    if not pairs:
        fragile = "" if held or not run.file.basis or not run.file.basis.held else ", ordered by chance"
        raise WrongUse(f"{folder} has no race: its verdict is {run.file.verdict}{fragile}")
    number = _number(folder, [judged for judged, _ in pairs], race.strip())
    judged, sites = pairs[number - 1]
    selection = Chosen(folder, run, number, judged, sites)
    if traced and not selection.traced:
        raise WrongUse(
            f"{folder} has no traces any more (the catalogue, for one, removes them): run the program again with "
            "'streamrace check', and name the folder of that run"
        )
    return selection


def _number(folder: Path, races: Sequence[Race], wanted: str) -> int:
    if wanted.isascii() and wanted.isdigit():
        if not 1 <= int(wanted[:9]) <= len(races):
            raise WrongUse(f"{folder} has no race {wanted}. It has {_list(races)}")
        return int(wanted)
    places = [place.strip() for place in wanted.split(BETWEEN)]
    if len(places) > 2 or not all(all(place.rpartition(":")[::2]) for place in places):
        raise WrongUse(
            f"'{wanted}' is no race: give its number, a place of it (file.py:function or file.py:line), or both places "
            f"with a comma between them. {folder} has {_list(races)}"
        )
    places = [place.rpartition("/")[2] for place in places]
    numbers = [number for number, race in enumerate(races, 1) if _lies(race, places)]
    if not numbers:
        raise WrongUse(f"{folder} has no race at {wording.every(places)}. It has {_list(races)}")
    if len(numbers) > 1:
        listing = _list(races, numbers)
        raise WrongUse(f"{len(numbers)} races of {folder} are at {wording.every(places)}: give the number. {listing}")
    return numbers[0]


def _lies(race: Race, places: Sequence[str]) -> bool:
    """Check whether the race lies at these places; of two places each must match one of the accesses."""
    return at(race, places[0]) if len(places) == 1 else between(race, places)


def _list(races: Sequence[Race], numbers: Sequence[int] = ()) -> str:
    wanted = numbers or range(1, len(races) + 1)
    entries = [f"{number}: {_short(races[number - 1])}" for number in wanted[:_LISTED]]
    more = f"; and {len(wanted) - _LISTED} more" if len(wanted) > _LISTED else ""
    return "; ".join(entries) + more


def _short(race: Race) -> str:
    return f"{race.kind}, {race.first.place or 'no place known'} and {race.second.place or 'no place known'}"
