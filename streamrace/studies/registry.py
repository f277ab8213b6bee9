"""Lists the studies by name. Imports none of them: each takes seconds."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from streamrace.studies.study import Study


class StudyEntry(NamedTuple):
    """STUDY of ``streamrace.studies.declared.NAME``. ``text``: its summary; ``extras``: as in ``streamrace[...]``;
    ``gpu``: its process starts the simulated GPU before torch is imported.
    """

    text: str
    extras: str = "deepspeed,reports"
    gpu: bool = True


STUDIES = {
    "placements": StudyEntry("Where hpZ's synchronisation could stand: prices."),
    "sweep": StudyEntry("Where the race shows and hpZ pays: networks x micro-batches."),
    "why": StudyEntry("Which single assumption decides whether hpZ's race shows."),
    "memory": StudyEntry("What hpZ's secondary copy costs in memory, by model and group."),
    "kernels": StudyEntry("The model of kernels beside what others have measured.", "reports", gpu=False),
}


def load(name: str) -> Study:
    """Return the declaration of a study."""
    study: Study = import_module(f"streamrace.studies.declared.{name}").STUDY
    return study
