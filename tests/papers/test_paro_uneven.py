"""PaRO beyond its paper: a slow node, nodes of other sizes, larger models in closed form; and one dry ring."""

from __future__ import annotations

from pathlib import Path

import pytest

from papers.studies import paro_uneven
from papers.studies.paro_paper import RATES, SHARES, PaperCase
from papers.studies.paro_timed import StepTimes
from streamrace.scenarios.models import FULL_SIZE


def test_a_slow_node_holds_up_what_goes_between_nodes() -> None:
    """ZeRO-3's step waits for the network alone, IIG's not at all."""
    zero3 = PaperCase("llama-2-7b", "all", 32, "GGG")
    waits = StepTimes(dict.fromkeys(RATES, 8000) | {share: round(8000 / share) for share in SHARES}, 1, 1, 1)
    computes = StepTimes(dict.fromkeys((*RATES, *SHARES), 4000), 1, 1, 1)
    frame = paro_uneven.slow_node({zero3: waits, zero3._replace(strategy="IIG"): computes})
    assert frame.slower.tolist() == [1, 2, 4, 1, 1, 1]
    assert frame.gain.tolist() == [1, 1, 1, 2, 4, 8]
    assert (frame.closed[3:].diff().dropna() > 0).all(), "the closed form says so, too"


def test_nodes_of_other_sizes_are_refused_and_have_a_closed_form() -> None:
    frame = paro_uneven.sizes_differ()
    assert frame.refused[0].startswith("nodes of 8 GPUs do not make 12 ranks")
    assert frame.step_s.tolist() == pytest.approx(frame.even_s.tolist()), "as three nodes of 4"
    assert frame.gain.idxmax() != 0


def test_what_fits_of_larger_models() -> None:
    """ZeRO-3: 16 bytes per parameter, over all GPUs. IIG: 4 of them over a node's eight."""
    frame = paro_uneven.large().set_index(["model", "ranks", "scheme"])
    parameters = FULL_SIZE["gpt-175b"].parameters
    assert 174e9 < parameters < 176e9, "GPT-3"
    assert frame.states_gb["gpt-175b", 128, "GGG"] == pytest.approx(16 * parameters / 128 / 1e9)
    assert frame.states_gb["gpt-175b", 128, "IIG"] == pytest.approx((4 / 8 + 12 / 128) * parameters / 1e9)
    assert not frame.fits["gpt-175b", 128, "IIG"]
    assert frame.fastest["gpt-175b", 128, "IGG"]
    assert frame.fastest["llama-65b", 32, "IIG"]
    assert frame[frame.fastest].fits.all()


def test_ho_ring_beside_the_papers_figure(tmp_path: Path) -> None:
    row = paro_uneven.rings(tmp_path, ranks=(16,), workers=1).iloc[0]
    assert 0 < row.ho_ring_s < row.flat_s
    assert row.less == 1 - row.ho_ring_s / row.flat_s
    needed = 8e9 * 15 / 16 / row.needs_gbit / 1e9  # of a flat ring with that rate
    assert 1 - row.ho_ring_s / needed == pytest.approx(row.theirs)
