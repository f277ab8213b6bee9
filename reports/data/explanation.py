"""Holds a race's explanation as data: the content that ``streamrace explain`` prints, draws and writes as JSON."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from streamrace.detectors.confidence.order_context import Around
from streamrace.detectors.order.races import Occurrence, plain
from streamrace.reports.data.loading import ReadRun
from streamrace.reports.data.schema import Judged
from streamrace.reports.text.telling import Section
from streamrace.reports.window import Window

FORMAT, VERSION = "stream-race-explanation", 1
FILE = "explanation.json"


@dataclass(frozen=True)
class Explained:
    """Race ``number`` of ``run``. ``headline``: one sentence; ``sections``: the text.

    ``own``: the window around the two accesses in the run; ``other``: in the other timing, in which their ``order`` is
    reversed, or the program's. None: not kept; ``lacks`` says so, in sentences. ``command``: runs the witness again.
    """

    run: ReadRun
    number: int
    race: Judged
    headline: str
    sections: tuple[Section, ...]
    occurrence: Occurrence | None
    around: Around | None
    own: Window | None
    other: Window | None
    order: Literal["reversed", "program"]
    lacks: tuple[str, ...]
    missing: str
    token: str = ""
    command: str = ""
    fragile: bool = False

    @property
    def folder(self) -> Path:
        return self.run.folder

    def titles(self) -> tuple[str, str]:
        """Return the titles of the two timings, the run's own first."""
        shown = self.occurrence is not None and self.occurrence.manifested
        this_run = "This run, in which it shows" if shown else "This run, in which it does not show"
        return this_run, "The witness, in which it shows" if self.order == "reversed" else "In the program's order"

    def as_dict(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "version": VERSION,
            "run": self.run.name,
            "number": self.number,
            "fragile": self.fragile,
            "headline": self.headline,
            "told": plain(self.sections),
            "missing": self.missing,
            "lacks": list(self.lacks),
            "race": self.race.as_dict(),
            "occurrence": plain(self.occurrence),
            "order": plain(self.around),
            "token": self.token,
            "command": self.command,
            "timings": {"own": plain(self.own), "other": plain(self.other), "other_order": self.order},
        }

    def text(self) -> str:
        """Return the explanation as JSON."""
        return json.dumps(self.as_dict(), indent=2, ensure_ascii=False) + "\n"
