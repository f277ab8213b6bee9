"""Two unknown figures at once: found where one alone explains nothing, and not where the other rows need none of it."""

from __future__ import annotations

import math

import pytest

from papers.studies.pairs import FIRST, best_two, two_figures
from papers.studies.unknowns import UNKNOWNS, Curve, best, calibrating, explanations

_PARAMETERS = 1e10
_STEPS = [(2.0, 1.0), (4.0, 3.0), (3.0, 6.0), (8.0, 2.0)]  # seconds of communication and of computing


def curves(network: float, computing: float) -> dict[str, Curve]:
    """Of a machine on which nothing is hidden anyway, of a model of :data:`_PARAMETERS`."""

    def seconds(name: str, value: float) -> float:
        sent = network / value if name == "network" else network
        made = computing * value if name == "kernels" else computing
        return sent + made + (value * 1e-12 * _PARAMETERS if name == "parameter" else 0.0)

    return {one.key: Curve(one, tuple(seconds(one.name, each) for each in one.values)) for one in UNKNOWNS}


def _measured(network: float, computing: float, share: float, ps: float) -> float:
    return network / share + computing + ps * 1e-12 * _PARAMETERS


def test_a_slow_network_and_copies_together_explain_what_neither_does_alone() -> None:
    """Half of the network and 140 ps more for each parameter: more than either may be, to make up for by itself."""
    of = [curves(*step) for step in _STEPS]
    theirs = [_measured(*step, 0.5, 140) for step in _STEPS]
    alone = explanations(of, theirs)
    errors = calibrating(alone, theirs)
    found = two_figures(of, theirs)
    assert best(alone[0], errors, theirs[0]) is None
    told = best_two(found, theirs, 0)
    assert told is not None
    assert told.first.name == "network"
    assert told.value == pytest.approx(0.5)
    assert told.parameter_ps == pytest.approx(140)
    assert told.seconds == pytest.approx(theirs[0])


def test_what_makes_up_for_one_row_alone_is_no_explanation() -> None:
    """Three rows come out as they are; the fourth would need what none of them does."""
    of = [curves(*step) for step in _STEPS]
    theirs = [_measured(*step, 1.0, 0.0) for step in _STEPS]
    theirs[0] = _measured(*_STEPS[0], 0.6, 100)
    found = two_figures(of, theirs)
    assert any(not math.isnan(one.value) for one in found[0]), "some pair would do"
    assert best_two(found, theirs, 0) is None


def test_two_rows_are_too_few_for_two_figures() -> None:
    of = [curves(*step) for step in _STEPS]
    theirs = [_measured(*step, 0.5, 140) for step in _STEPS]
    assert [len(options) for options in two_figures(of[:2], theirs[:2])] == [0, 0]
    assert [len(options) for options in two_figures(of[:3], theirs[:3])] == [len(FIRST)] * 3
