"""Explains a race from its run's folder alone: from the traces, and from the stored data of its witness."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import PurePath
from typing import NamedTuple

from streamrace.detectors.confidence.chains import Link, OrderGraph
from streamrace.detectors.confidence.order_context import Around, OrderAround
from streamrace.detectors.confidence.waits import Waits
from streamrace.detectors.files import read
from streamrace.detectors.order.races import Occurrence, Race
from streamrace.device.timing import Place, Timing
from streamrace.device.tokens import TokenError, shown
from streamrace.fuzz.live.deviations import words
from streamrace.reports.data import witnesses
from streamrace.reports.data.explanation import Explained
from streamrace.reports.data.verdict import kept
from streamrace.reports.data.witnesses import SeenElsewhere
from streamrace.reports.text import replays
from streamrace.reports.text.telling import RaceTelling, named, short
from streamrace.reports.timelines import moment
from streamrace.repro.sessions.race_selection import Chosen
from streamrace.trace import wording
from streamrace.trace.files import file_of
from streamrace.trace.records import TraceError

_MOST = 400  # slices in a picture


class _Order(NamedTuple):
    """The order around a race. ``why_not``: why it is unknown, a sentence. ``held``: the chain of a fragile pair."""

    around: Around | None = None
    why_not: str = ""
    held: tuple[Link, ...] = ()


def explain(chosen: Chosen) -> Explained:
    """Explain a race. Raises :class:`streamrace.reports.data.schema.ReportError` for invalid data in the folder."""
    race = chosen.race
    seen = None if chosen.sites else witnesses.read(chosen.folder).get(chosen.number)
    if seen is not None and not _is_of(seen, race):
        seen = None
    thinned = chosen.run.file.checked.thinned if chosen.run.file.checked else None
    example = seen.occurrence if seen else _pick(kept(race.examples, thinned.ends if thinned else ()) or race.examples)
    order = _order(chosen, example)
    telling = RaceTelling(
        race,
        example,
        order.around,
        order.why_not,
        _script(chosen),
        " or ".join(map(str, chosen.sites)),
        order.held,
        thinned=thinned is not None,
    )
    own = None
    if example is not None:
        own = moment.window(file_of(chosen.trace, example.rank), example.first, example.second, most=_MOST)
    witness = race.witness
    token = witness.token if witness else ""
    command = (witness.command or replays(token)) if witness and token else ""
    return Explained(
        run=chosen.run,
        number=chosen.number,
        race=race,
        headline=telling.headline(),
        sections=(
            telling.happens(),
            telling.order(),
            telling.shows(_where(token, race, example, order.around)),
            telling.does(witness),
        ),
        occurrence=example,
        around=order.around,
        own=own,
        other=seen.window if seen else None,
        order=seen.order if seen else "reversed",
        lacks=_lacks(chosen, own is not None, seen),
        missing=telling.missing(),
        token=token,
        command=command,
        fragile=bool(chosen.sites),
    )


def _is_of(seen: SeenElsewhere, race: Race) -> bool:
    """Check that the stored witness belongs to this race, as the folder is untrusted."""
    if race.occurrences > len(race.examples):
        return seen.occurrence.rank in race.ranks
    return seen.occurrence in race.examples


def _pick(examples: Sequence[Occurrence]) -> Occurrence | None:
    """Return the first occurrence that shows in the run, else the first."""
    return next((occurrence for occurrence in examples if occurrence.manifested), examples[0] if examples else None)


def _order(chosen: Chosen, occurrence: Occurrence | None) -> _Order:
    if occurrence is None:
        return _Order(why_not="The run kept no occurrence of it, so what precedes each access is not known here.")
    race, graph, waits = chosen.race, OrderGraph(), Waits()
    if not file_of(chosen.trace, occurrence.rank).is_file():
        return _Order(
            why_not="The run has no traces any more, so what precedes each access is not known here: the same "
            "'streamrace check' again keeps them."
        )
    held: tuple[Link, ...] = ()
    order = OrderAround(race, occurrence)
    try:
        if chosen.sites:
            read(chosen.trace, [waits, graph], kept=True)
            if occurrence.first.op is not None and occurrence.second.op is not None:
                first, second = (occurrence.first.op, race.first.access), (occurrence.second.op, race.second.access)
                held = graph.chain(occurrence.rank, first, second) or ()
        read(chosen.trace, [order], keep=waits.without(chosen.sites) if chosen.sites else None, kept=True)
        around = order.around()
    except (TraceError, LookupError, TypeError, ValueError, AttributeError) as error:
        why = error if isinstance(error, TraceError) else "a trace of it is damaged"
        return _Order(why_not=f"What precedes each access is not known here: {why}.")
    if around is None and chosen.run.file.checked and chosen.run.file.checked.thinned:
        return _Order(
            why_not="Both are in the part of the run's traces that was removed, so what precedes each is not known "
            "here: 'streamrace check --keep-trace 0' keeps all.",
            held=held,
        )
    if around is None:
        return _Order(why_not="The traces in the folder do not hold the two, so they are of another run.", held=held)
    return _Order(around, "", held)


def _where(token: str, race: Race, occurrence: Occurrence | None, around: Around | None) -> str:
    """Describe the timing of a token in words; empty without a token."""
    if not token:
        return ""
    try:
        timing = Timing.parse(token)
    except TokenError:  # the token is of a scenario's replay
        return f"It shows in the timing {shown(token)}."
    if not timing.deviations:
        return "It shows in the plain timing, where nothing is made slower."
    names: dict[tuple[int, int], str] = {}
    if around is not None and occurrence is not None:
        sides = zip(around.streams, (race.first, race.second), strict=True)
        names = {(occurrence.rank, number): named(side.stream) for number, side in sides}

    def work(place: Place) -> str:
        nth = "first" if place.occurrence == 1 else wording.ordinal(place.occurrence)
        stream = names.get((place.rank, place.stream), f"stream {place.stream}")
        return f"the {nth} `{short(place.kernel)}` on {stream} of rank {place.rank}"

    clauses = (words(each, work=work, stream="stream {}".format) for each in timing.deviations)
    return f"It shows when {wording.every(clauses)}."


def _script(chosen: Chosen) -> str:
    """Return the name of the program's own file; empty if there is none."""
    if not chosen.own:
        return ""
    try:
        words = shlex.split(str(chosen.asked.get("program", "")))
    except ValueError:
        return ""
    return PurePath(words[0]).name if words and words[0] != "-m" else ""


def _lacks(chosen: Chosen, drawn: bool, seen: SeenElsewhere | None) -> tuple[str, ...]:
    """List the missing pictures, with reasons."""
    gaps = []
    if not drawn:
        gaps.append("There is no picture of the run's own timing: its trace is not in the folder, or does not hold it.")
    if seen is None and not chosen.sites:
        witness = chosen.race.witness
        if witness is None or not witness.token:
            gaps.append("There is no picture of a timing in which it shows: the run has no witness of it.")
        else:
            gaps.append(
                "There is no picture of the witness: the run kept only its token (a scenario's run keeps no more, nor "
                "did earlier versions)."
            )
    return tuple(gaps)
