"""Removes each synchronisation of stock ZeRO-3 on its own, to find which are needed.

The device records all ordering calls of a small live run, so that none is missed. Then the same training runs once for
each site, with an override that does nothing at this site: is a race found, do values differ from the reference, does
the run break?
"""

from __future__ import annotations

from collections import Counter
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
from streamrace.studies.process_pool import OnProgress, quiet
from streamrace.trace.files import TraceReader, file_of

SCENARIO: dict[str, Any] = {"size": "tiny", "sequence": 32, "steps": 3, "accumulation": 2}
COLUMNS = {
    "operation": "str", "function": "str", "file": "str", "line": "int64", "count": "int64", "race": "bool",
    "pairs": "str", "diverges": "bool", "verdict": "str", "note": "str",
}  # fmt: skip
"""Columns of the frame and their dtypes: see :func:`study`."""

CARRIES = "carries load"
UNSHOWN = "needed, did not show"
REDUNDANT = "redundant here"
BREAKS = "breaks the run"
ORDERLESS = "diverges without a race"


def name_of(site: Site) -> str:
    """Describe the site in words."""
    return f"{site.operation} ({PurePath(site.file).name}:{site.line} {site.function.rpartition('.')[2]})"


class SiteOutcome(NamedTuple):
    """The result of one run. ``broke``: why it broke, in a sentence; then the other fields cover the part that ran.

    ``sites``: the synchronisations in DeepSpeed's code that rank 0 executed, in program order, and how often in the
    last step (0: only before it).
    """

    races: tuple[Race, ...]
    diverged: str
    sites: dict[Site, int]
    broke: str = ""


def reference(scenario: Scenario, folder: Path) -> Values:
    """Run the same program on the CPU with gloo. Raises :class:`streamrace.device.ranks.cluster.RankFailed`."""
    values = Values()
    parts = scenario.hpz if scenario.hpz > 1 else scenario.ranks
    program.run(scenario, simulated=False, folder=folder, receive=_receiving(values), parts=parts)
    return values


def live(scenario: Scenario, folder: Path, expected: Values, without: Site | None = None) -> SiteOutcome:
    """Run the scenario on the simulated device, without the synchronisation ``without``."""
    values = Values()
    sites: dict[Site, int] = {}
    broke = ""
    overrides = [] if without is None else [_override(without)]
    try:
        program.run(
            scenario, simulated=True, folder=folder, receive=_receiving(values, sites), overrides=overrides, calls=True
        )
    except RankFailed as error:
        broke = f"rank {error.rank} {error.reason}"
    detector = RaceDetector()
    for rank in range(scenario.ranks):
        file = file_of(folder / "trace", rank)
        if file.exists():
            detector.feed(rank, TraceReader(file).read())
    detector.finish()
    divergence = compare(expected, values)
    first = ""
    if divergence.parameter is not None:
        parameter = divergence.parameter
        first = f"{parameter.name} in {parameter.phase} of step {parameter.step}, micro-batch {parameter.micro_batch}"
    elif divergence.loss is not None:
        first = f"the loss of step {divergence.loss.step}, micro-batch {divergence.loss.micro_batch}"
    elif divergence.final:
        first = f"{divergence.final[0]} at the end"
    return SiteOutcome(tuple(detector.races), first, sites, broke)


def verdict(outcome: SiteOutcome) -> str:
    """Return the verdict on a synchronisation, from a run without it, in this configuration and this timing."""
    if outcome.broke:
        return BREAKS
    if outcome.diverged:
        return CARRIES if outcome.races else ORDERLESS
    return UNSHOWN if outcome.races else REDUNDANT


def study(folder: Path, progress: OnProgress = quiet, **options: Any) -> pd.DataFrame:
    """Remove each synchronisation of a small live run on its own; a row each, in program order.

    ``options``: of the scenario, besides or instead of :data:`SCENARIO`. Columns: ``operation``, ``function``, ``file``
    and ``line`` of the site; ``count`` in a step on rank 0; ``race``: found without the site, and ``pairs``, the racing
    lines; ``diverges``: values differ from the reference; ``verdict``; ``note``: the place of the divergence, or how
    the run broke.

    :func:`streamrace.scenarios.program.preload` must have been called. Raises :class:`ScenarioError` when the stock run
    is not clean, as then its parts cannot be judged.
    """
    tested = scenario(**{**SCENARIO, **options})
    tested.check()
    expected = reference(tested, folder / "reference")
    stock = live(tested, folder / "stock", expected)
    if stock.races or stock.diverged or stock.broke:
        raise ScenarioError(
            "stock DeepSpeed is not clean in this scenario, so its synchronisations cannot be judged one by one: "
            "leave an option out"
        )
    counted = {site: count for site, count in stock.sites.items() if count}
    rows = []
    for number, (site, count) in enumerate(counted.items(), 1):
        outcome = live(tested, folder / f"without-{number}", expected, site)
        if not outcome.broke and site in outcome.sites:
            raise ScenarioError(f"{name_of(site)} could not be taken away: it is still in the trace")
        word = verdict(outcome)
        progress(number, len(counted), f"without {name_of(site)}: {word}")
        rows.append(
            {
                **site._asdict(),
                "count": count,
                "race": bool(outcome.races),
                "pairs": "; ".join(Counter(map(pair, outcome.races))),
                "diverges": bool(outcome.diverged),
                "verdict": word,
                "note": outcome.broke or outcome.diverged,
            }
        )
    return pd.DataFrame(rows, columns=list(COLUMNS))


def _override(site: Site) -> Override:
    return Override(site.operation, site.function, site.file, _nothing, site.line)


def _nothing(stream: object) -> None:
    """Do nothing in place of a synchronisation."""


def _receiving(values: Values, sites: dict[Site, int] | None = None) -> program.Receive:
    def receive(rank: int, report: Report) -> None:
        if isinstance(report, CallsCounted) and rank == 0 and sites is not None:
            calls = {Site(*call[:-1]): call[-1] for call in report.calls}
            sites.update((site, count) for site, count in calls.items() if site.file.startswith("deepspeed/"))
        elif isinstance(report, StepDone):
            values.add(rank, report.losses, report.parameters)
        elif isinstance(report, TrainingEnded):
            values.final[rank] = report.final

    return receive
