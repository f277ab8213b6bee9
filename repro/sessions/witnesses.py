"""Computes the witness tokens of a run's races. Executes nothing: 'streamrace replay' does."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from streamrace.detectors import Race
from streamrace.detectors.witness import Witness
from streamrace.fuzz.witness import reverse
from streamrace.replay.faults import ReplayError
from streamrace.replay.graph import Graph
from streamrace.replay.recording import Recording
from streamrace.replay.tokens import Token
from streamrace.scenarios.registry import NAMED, difference
from streamrace.scenarios.scenario import Scenario


def token(scenario: Scenario, deviations: Sequence[object] = ()) -> Token:
    """Return the shortest token for a timing of the scenario."""
    options = {name: difference(name, scenario) for name in NAMED}
    name = min(options, key=lambda option: (len(options[option]), option))
    return Token(name, options[name], tuple(deviations))  # type: ignore[arg-type]


def of(scenario: Scenario, trace: Path, races: Sequence[Race]) -> list[Witness]:
    """Return a token for each race, or the reason why there is none."""
    by_race = {at: Witness(str(token(scenario)), "") for at, race in enumerate(races) if _shown(race)}
    rest = [at for at in range(len(races)) if at not in by_race]
    by_race |= zip(rest, _reversed(scenario, trace, [races[at] for at in rest]), strict=True)
    return [by_race[at] for at in range(len(races))]


def _shown(race: Race) -> bool:
    """Check whether the recorded timing is the witness, as :func:`reverse` would, but without the graph of all work."""
    first = race.examples[0]
    return first.manifested and first.first.op is not None and first.second.op is not None


def _reversed(scenario: Scenario, trace: Path, races: Sequence[Race]) -> list[Witness]:
    if not races:
        return []
    try:
        recording = Recording.load(trace, calls=False)
        graph = Graph(recording)
    except ReplayError as error:
        return [Witness("", str(error)) for _ in races]
    results = []
    for race in races:
        reversals = (reverse(recording, graph, race, example) for example in race.examples)
        reversal = next((attempt for attempt in reversals if not attempt.reason), None)
        if reversal is None:
            results.append(Witness("", reverse(recording, graph, race, race.examples[0]).reason))
        else:
            results.append(Witness(str(token(scenario, reversal.deviations)), ""))
    return results
