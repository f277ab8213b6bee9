"""Takes away each synchronisation of stock ZeRO-3 by itself, to find which ones are needed.

The device records which calls that order something a small live run comes by, so that none is forgotten. Then the same
training runs once for each site, with an override that does nothing there: is a race found, do values differ from the
reference, does the run break?
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path, PurePath
from typing import Any, NamedTuple

import pandas as pd

from streamrace.detectors import Race, RaceDetector, Values, compare
from streamrace.device.overrides import Override, Site
from streamrace.device.ranks.cluster import RankFailed
from streamrace.scenarios import program
from streamrace.scenarios.base import ScenarioError
from streamrace.scenarios.messages import CallsCounted, Report, StepDone, TrainingEnded
from streamrace.scenarios.scenario import Scenario, scenario
from streamrace.studies.placements import pair
from streamrace.trace.files import TraceReader, file_of

SCENARIO: dict[str, Any] = {"size": "tiny", "sequence": 32, "steps": 3, "accumulation": 2}
COLUMNS = ("operation", "function", "file", "line", "count", "race", "pairs", "diverges", "verdict", "note")
"""Of the frame: see :func:`study`."""

CARRIES = "carries load"
UNSHOWN = "needed, did not show"
REDUNDANT = "redundant here"
BREAKS = "breaks the run"
ORDERLESS = "diverges without a race"


def name_of(site: Site) -> str:
    """The site in words."""
    return f"{site.operation} ({PurePath(site.file).name}:{site.line} {site.function.rpartition('.')[2]})"


class SiteOutcome(NamedTuple):
    """What one run found. ``broke``: why it did not end, in a sentence; then the rest is of what there was.

    ``sites``: the synchronisations of DeepSpeed's code that rank 0 came by, in the order of the program, and how often
    in the last step (0: only before it).
    """

    races: tuple[Race, ...]
    diverged: str
    sites: dict[Site, int]
    broke: str = ""


def reference(made: Scenario, folder: Path) -> Values:
    """The same program on the CPU with gloo. Raises :class:`streamrace.device.ranks.cluster.RankFailed`."""
    values = Values()
    parts = made.hpz if made.hpz > 1 else made.ranks
    program.run(made, simulated=False, folder=folder, receive=_receiving(values), parts=parts)
    return values


def live(made: Scenario, folder: Path, expected: Values, without: Site | None = None) -> SiteOutcome:
    """Run it, without one synchronisation."""
    values = Values()
    sites: dict[Site, int] = {}
    broke = ""
    overrides = [] if without is None else [_override(without)]
    try:
        program.run(
            made, simulated=True, folder=folder, receive=_receiving(values, sites), overrides=overrides, calls=True
        )
    except RankFailed as error:
        broke = f"rank {error.rank} {error.reason}"
    detector = RaceDetector()
    for rank in range(made.ranks):
        file = file_of(folder / "trace", rank)
        if file.exists():
            detector.feed(rank, TraceReader(file).read())
    detector.finish()
    divergence = compare(expected, values)
    first = ""
    if divergence.parameter is not None:
        one = divergence.parameter
        first = f"{one.name} in {one.phase} of step {one.step}, micro-batch {one.micro_batch}"
    elif divergence.loss is not None:
        first = f"the loss of step {divergence.loss.step}, micro-batch {divergence.loss.micro_batch}"
    elif divergence.final:
        first = f"{divergence.final[0]} at the end"
    return SiteOutcome(tuple(detector.races), first, sites, broke)


def verdict(found: SiteOutcome) -> str:
    """The verdict on a synchronisation, from a run without it, in this configuration and this timing."""
    if found.broke:
        return BREAKS
    if found.diverged:
        return CARRIES if found.races else ORDERLESS
    return UNSHOWN if found.races else REDUNDANT


def study(folder: Path, progress: Callable[[str], None] = lambda text: None, **options: Any) -> pd.DataFrame:
    """Take each synchronisation of a small live run away alone; a row each, in the order of the program.

    ``options`` are further ones of the scenario, or other than :data:`SCENARIO`. Columns: ``operation``, ``function``,
    ``file`` and ``line`` of the site; ``count`` in a step on rank 0; ``race``: found without it, and ``pairs``, the
    racing lines; ``diverges``: values differ from the reference; ``verdict``; ``note``: where it diverges, or how the
    run broke.

    :func:`streamrace.scenarios.program.preload` must have been called. Raises :class:`ScenarioError` when the stock run
    is not clean, as then nothing can be said of its parts.
    """
    made = scenario(**{**SCENARIO, **options})
    made.check()
    expected = reference(made, folder / "reference")
    stock = live(made, folder / "stock", expected)
    if stock.races or stock.diverged or stock.broke:
        raise ScenarioError(
            "stock DeepSpeed is not clean in this scenario, so its synchronisations cannot be judged one by one: "
            "leave an option out"
        )
    counted = {site: count for site, count in stock.sites.items() if count}
    rows = []
    for number, (site, count) in enumerate(counted.items(), 1):
        found = live(made, folder / f"without-{number}", expected, site)
        if not found.broke and site in found.sites:
            raise ScenarioError(f"{name_of(site)} could not be taken away: it is still in the trace")
        said = verdict(found)
        progress(f"{number} of {len(counted)}: without {name_of(site)}: {said}")
        rows.append(
            {
                **site._asdict(),
                "count": count,
                "race": bool(found.races),
                "pairs": "; ".join(Counter(map(pair, found.races))),
                "diverges": bool(found.diverged),
                "verdict": said,
                "note": found.broke or found.diverged,
            }
        )
    return pd.DataFrame(rows, columns=list(COLUMNS))


def _override(site: Site) -> Override:
    return Override(site.operation, site.function, site.file, _nothing, site.line)


def _nothing(stream: object) -> None:
    """A synchronisation that orders nothing."""


def _receiving(values: Values, sites: dict[Site, int] | None = None) -> program.Receive:
    def receive(rank: int, report: Report) -> None:
        if isinstance(report, CallsCounted) and rank == 0 and sites is not None:
            found = {Site(*call[:-1]): call[-1] for call in report.calls}
            sites.update((site, count) for site, count in found.items() if site.file.startswith("deepspeed/"))
        elif isinstance(report, StepDone):
            values.add(rank, report.losses, report.parameters)
        elif isinstance(report, TrainingEnded):
            values.final[rank] = report.final

    return receive
