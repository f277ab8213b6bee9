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
    "plan": StudyEntry("Find the way to shard a job that fits and is the fastest, by dry runs."),
    "placements": StudyEntry("Compare the places for hpZ's synchronisation, with their costs."),
    "sweep": StudyEntry("Find where the race shows and hpZ pays: networks x micro-batches."),
    "why": StudyEntry("Find the assumptions that decide whether hpZ's race shows."),
    "memory": StudyEntry("Measure the memory of hpZ's secondary copy, by model and group."),
    "kernels": StudyEntry("Compare the model of kernels with published measurements.", "reports", gpu=False),
}


def load(name: str) -> Study:
    """Return the declaration of a study."""
    study: Study = import_module(f"streamrace.studies.declared.{name}").STUDY
    return study
