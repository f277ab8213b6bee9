"""Each synchronisation of stock ZeRO-3 by itself: which ones carry load?

The sites are read from the trace of a small live run, so that they are those that this training passes, and none is
forgotten. Then the same training runs once for each site, with a rule that does nothing there: is a race found, do
values differ from the reference, does the run break?
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path, PurePath
from typing import Any, NamedTuple

import pandas as pd

from detectors import HappensBefore, Race, Values, compare
from repro.cluster import RankFailed
from repro.trace import Collective, Frame, HostWait, Phase, Record, Stack, TraceReader, TraceRecord, Wait, file_of
from scenarios import program
from scenarios.scenario import Scenario, ScenarioError, scenario
from simgpu.rules import Rule
from studies.placements import pair

SCENARIO: dict[str, Any] = {"size": "tiny", "sequence": 32, "steps": 3, "accumulation": 2}
COLUMNS = ("operation", "function", "file", "line", "count", "race", "pairs", "diverges", "verdict", "note")
"""Of the frame: see :func:`study`."""

CARRIES = "carries load"
UNSHOWN = "needed, did not show"
REDUNDANT = "redundant here"
BREAKS = "breaks the run"
ORDERLESS = "diverges without a race"

Tell = Callable[[str], None]


class Site(NamedTuple):
    """A call of DeepSpeed's code that orders something. ``operation``: as in :class:`repro.accelerator.device.Rule`."""

    operation: str
    file: str
    line: int
    function: str

    def __str__(self) -> str:
        return f"{self.operation} ({PurePath(self.file).name}:{self.line} {self.function.rpartition('.')[2]})"


def sites(trace: Path) -> dict[Site, int]:
    """The synchronisations in one rank's trace, in the order of the program, and how often each is passed in the last
    step (0: only before it).
    """
    reader = TraceReader(trace)
    records = list(reader.read())
    reader.close()
    return _sites(records)


def _sites(records: Sequence[TraceRecord]) -> dict[Site, int]:
    """A ``wait_stream`` is a record and a wait, a stream's ``synchronize`` a record and a wait of the host; a device's
    is the latter for every stream from one stack. A group's stream waits for the issuer by itself: that is no call.
    """
    stacks: dict[int, tuple[Frame, ...]] = {one.id: one.frames for one in records if isinstance(one, Stack)}
    groups = {one.stream for one in records if isinstance(one, Collective)}
    recorded: dict[int, int] = {}  # marker: its stream
    found: dict[Site, int] = {}
    last = max((one.step for one in records if isinstance(one, Phase)), default=0)
    step = 0
    before: TraceRecord | None = None
    behind: TraceRecord | None = None  # two before

    def add(operation: str, stack: int) -> None:
        inner = stacks[stack][0] if stacks.get(stack) else None
        if inner is not None and inner.file.startswith("deepspeed/"):
            site = Site(operation, inner.file, inner.line, inner.function)
            found[site] = found.get(site, 0) + (step == last)

    for place, record in enumerate(records):
        if isinstance(record, Stack):
            continue
        if isinstance(record, Phase):
            step = record.step
        elif isinstance(record, Record):
            recorded[record.marker] = record.stream
        elif isinstance(record, Wait) and record.stream not in groups:
            if recorded[record.marker] in groups:
                add("work.wait", record.stack)
            else:
                fresh = isinstance(before, Record) and before.marker == record.marker
                add("stream.wait_stream" if fresh else "stream.wait_event", record.stack)
        elif isinstance(record, HostWait) and record.how == "synchronize":
            if isinstance(before, Record) and before.marker == record.marker:
                follows = isinstance(behind, HostWait) and behind.stack == record.stack
                if follows and before.stream > 0:
                    pass  # a further stream of a device's
                elif before.stream == 0 and _of_device(records, place, record.stack):
                    add("device.synchronize", record.stack)
                else:
                    add("stream.synchronize", record.stack)
            elif not (isinstance(before, Wait) and before.marker == record.marker):  # else: a barrier's
                add("event.synchronize", record.stack)
        behind, before = before, record
    return found


def _of_device(records: Sequence[TraceRecord], place: int, stack: int) -> bool:
    """Does the host wait for the next stream, too, from the same stack?"""
    ahead = [one for one in records[place + 1 : place + 4] if not isinstance(one, Stack)][:2]
    return (
        len(ahead) == 2
        and isinstance(ahead[0], Record)
        and isinstance(ahead[1], HostWait)
        and (ahead[0].stream, ahead[1].stack) == (1, stack)
    )


class Outcome(NamedTuple):
    """What one run found. ``broke``: why it did not end, in a sentence; then the rest is of what there was."""

    races: tuple[Race, ...]
    diverged: str
    sites: dict[Site, int]
    broke: str = ""


def reference(made: Scenario, folder: Path) -> Values:
    """The same program on the CPU with gloo. Raises :class:`repro.cluster.RankFailed`."""
    values = Values()
    parts = made.hpz if made.hpz > 1 else made.ranks
    program.run(made, simulated=False, folder=folder, hear=_hearing(values), parts=parts)
    return values


def live(made: Scenario, folder: Path, expected: Values, without: Site | None = None) -> Outcome:
    """Run it, without one synchronisation."""
    values = Values()
    broke = ""
    rules = [] if without is None else [_rule(without)]
    try:
        program.run(made, simulated=True, folder=folder, hear=_hearing(values), rules=rules)
    except RankFailed as error:
        broke = f"rank {error.rank} {error.reason}"
    detector = HappensBefore()
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
    return Outcome(tuple(detector.races), first, sites(file_of(folder / "trace", 0)), broke)


def verdict(found: Outcome) -> str:
    """What a run without a synchronisation says of it, in this configuration and this timing."""
    if found.broke:
        return BREAKS
    if found.diverged:
        return CARRIES if found.races else ORDERLESS
    return UNSHOWN if found.races else REDUNDANT


def study(folder: Path, tell: Tell = lambda text: None, **options: Any) -> pd.DataFrame:
    """Take each synchronisation of a small live run away alone; a row each, in the order of the program.

    ``options`` are further ones of the scenario, or other than :data:`SCENARIO`. Columns: ``operation``, ``function``,
    ``file`` and ``line`` of the site; ``count`` in a step on rank 0; ``race``: found without it, and ``pairs``, the
    racing lines; ``diverges``: values differ from the reference; ``verdict``; ``note``: where it diverges, or how the
    run broke.

    :func:`scenarios.program.preload` must have been called. Raises :class:`ScenarioError` when the stock run is not
    clean, as then nothing can be said of its parts.
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
            raise ScenarioError(f"{site} could not be taken away: it is still in the trace")
        said = verdict(found)
        tell(f"{number} of {len(counted)}: without {site}: {said}")
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


def _rule(site: Site) -> Rule:
    return Rule(site.operation, site.function, site.file, _nothing, site.line)


def _nothing(stream: object) -> None:
    """Orders nothing."""


def _hearing(values: Values) -> Callable[[int, dict[str, Any]], None]:
    def hear(rank: int, message: dict[str, Any]) -> None:
        if message["kind"] == "step":
            values.add(rank, message["losses"], message["parameters"])
        elif message["kind"] == "end":
            values.final[rank] = message["final"]

    return hear
