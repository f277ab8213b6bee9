"""What a machine would have to be: found where there is one such figure, and not where there is none."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from papers.studies.sensitivity import joined, length
from papers.studies.unknowns import UNKNOWNS, Curve, best, calibrating, explanations, predicted


def curves(network: float, computing: float) -> dict[str, Curve]:
    """Of a machine on which a step communicates for ``network`` seconds at the nominal rate, and then computes."""

    def seconds(key: str, value: float) -> float:
        name = key.removeprefix("serial ")
        sent = network / value if name == "network" else network
        made = computing * value if name == "kernels" else computing
        more = value / 1e6 if name == "collective" else value / 1e3 if name == "parameter" else 0.0
        return sent + made + more - (value * min(network, computing) if name == "hidden" else 0.0)

    return {one.key: Curve(one, tuple(seconds(one.key, each) for each in one.values)) for one in UNKNOWNS}


@given(share=st.floats(0.5, 1.0), steps=st.lists(st.tuples(st.floats(1, 9), st.floats(1, 9)), min_size=2, max_size=5))
def test_one_slow_network_explains_all_its_rows(share: float, steps: list[tuple[float, float]]) -> None:
    """Rows of a cluster whose network gives a share of its nominal rate: each is predicted with what the others say."""
    theirs = [network / share + computing for network, computing in steps]
    found = explanations([curves(*step) for step in steps], theirs)
    for options, seconds in zip(found, theirs, strict=True):
        assert options[0].unknown.name == "network"
        assert options[0].value == pytest.approx(share, rel=1e-6)
        assert options[0].plausible or share in (0.5, 1.0)
        assert options[0].seconds == pytest.approx(seconds, rel=1e-6)
    assert calibrating(found, theirs)["network"] == pytest.approx(0, abs=1e-6)


def test_a_row_never_predicts_itself() -> None:
    """Three rows whose network gives a share each: the two others say what the third one is predicted with."""
    network = [curves(8.0, 1.0)["network"]] * 3
    theirs = [8.0 / share + 1.0 for share in (0.5, 0.5, 0.9)]
    assert predicted(network, theirs, 2) == pytest.approx(0.5)
    assert predicted(network[:2], theirs[1:], 0) == pytest.approx(0.9)
    assert math.isnan(predicted(network[:1], theirs[:1], 0)), "there is no other"


def test_what_is_not_plausible_explains_nothing() -> None:
    """A step of ten times the length: no plausible network, and no plausible kernels."""
    steps = [(1.0, 1.0), (1.0, 1.0)]
    found = explanations([curves(*step) for step in steps], [20.0, 20.0])
    assert math.isnan(found[0][1].value), "kernels: at no value that was timed"
    assert best(found[0], calibrating(found, [20.0, 20.0]), 20.0) is None


def test_of_two_explanations_that_of_the_whole_cluster_is_taken() -> None:
    """Both rows would come out with a slower network; the same one for both. Slower kernels would differ."""
    steps = [(4.0, 1.0), (2.0, 8.0)]
    theirs = [4.0 / 0.8 + 1.0, 2.0 / 0.8 + 8.0]
    found = explanations([curves(*step) for step in steps], theirs)
    errors = calibrating(found, theirs)
    told = [best(options, errors, seconds) for options, seconds in zip(found, theirs, strict=True)]
    assert [one.unknown.name for one in told if one] == ["network", "network"]
    assert errors["network"] < errors["kernels"]


def test_what_the_others_do_not_need_explains_nothing() -> None:
    """A row that needs half of the network, which no other row does: a figure for that row alone."""
    steps = [(8.0, 0.1)] * 4
    theirs = [8.1, 8.1, 8.1, 16.1]
    found = explanations([curves(*step) for step in steps], theirs)
    assert found[3][0].plausible
    assert found[3][0].value == pytest.approx(0.5)
    assert found[3][0].of_others == pytest.approx(1)
    assert best(found[3], calibrating(found, theirs), theirs[3]) is None


def test_what_the_others_cannot_have_explains_nothing() -> None:
    """Half hidden, a row comes out; the others take longer than with nothing hidden, so no part does for them."""
    steps = [(4.0, 4.0)] * 4
    theirs = [6.0, 20.0, 20.0, 20.0]
    found = explanations([curves(*step) for step in steps], theirs)
    hidden = next(one for one in found[0] if one.unknown.name == "hidden")
    assert (hidden.value, hidden.plausible) == (pytest.approx(0.5), True)
    assert (hidden.of_others, hidden.seconds) == (pytest.approx(0.0), pytest.approx(8.0))
    assert best(found[0], calibrating(found, theirs), theirs[0]) is None


def test_a_row_that_an_unknown_brings_within_a_tenth_comes_out_with_it() -> None:
    """Four hundredths longer than with nothing hidden: so nothing is hidden, whatever else there is."""
    found = explanations([curves(4.0, 4.0)] * 3, [8.32, 8.32, 8.0])
    for options in found:
        hidden = next(one for one in options if one.unknown.name == "hidden")
        assert (hidden.value, hidden.plausible) == (pytest.approx(0.0), True)
    far = explanations([curves(4.0, 4.0)] * 3, [9.0] * 3)
    assert all(math.isnan(one.value) for one in far[0] if one.unknown.name == "hidden")


def test_every_unknown_has_a_plausible_range_with_a_source() -> None:
    for one in UNKNOWNS:
        assert one.low < one.high
        assert one.source
        assert min(one.values) <= one.low, "what is plausible was timed"
        assert max(one.values) >= one.high


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 10)), max_size=8), st.integers(0, 20))
def test_spans_are_joined_as_sets_of_moments_are(drawn: list[tuple[int, int]], began: int) -> None:
    spans = np.array([(begin, begin + took) for begin, took in drawn], dtype=np.int64).reshape(-1, 2)
    moments = {at for begin, end in spans.tolist() for at in range(begin, end) if at >= began}
    assert length(joined(spans, began)) == len(moments)
