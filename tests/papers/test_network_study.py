"""The model of the network beside what others measured: nothing is fitted, and what is off says why."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

from papers.studies import network
from streamrace.scenarios.sharding.rings import CHUNK


@pytest.fixture(scope="module")
def frame() -> pd.DataFrame:
    return network.study()


def test_each_row_has_its_source(frame: pd.DataFrame) -> None:
    assert len(frame) >= 25
    assert frame.source.str.contains(r"issues? \d+").all()
    assert not frame.duplicated(["machine", "collective", "bytes", "way", "source"]).any()


def test_rows_without_a_reason_are_within_a_quarter_and_a_tenth_on_average(frame: pd.DataFrame) -> None:
    """What NCCL's maintainers say is as good as it gets comes out within 4 %."""
    plain = frame[frame.why == ""]
    assert plain.error.abs().max() < 0.25
    assert plain.error.abs().mean() < 0.10
    good = plain[plain.source.str.contains(r"\(NCCL\)") & (plain.bytes > 1 << 28)]
    assert len(good) >= 3
    assert good.error.abs().max() < 0.04


def test_a_machine_is_described_and_no_figure_of_nccl(frame: pd.DataFrame) -> None:
    known = {
        "machine", "profile", "cards", "gpus", "network", "collective", "algorithm", "nodes", "gpus_per_node", "bytes",
        "busbw", "us", "simai", "source", "why",
    }  # fmt: skip
    assert {key for row in network.published() for key in row} <= known


def test_simai_has_the_same_of_large_messages(frame: pd.DataFrame) -> None:
    """Its analytical mode has rates without latency, and NVLS."""
    alike = frame[frame.simai.notna() & (frame.why == "") & (frame.bytes >= 1 << 30)]
    assert len(alike) >= 6
    assert ((alike.ours / alike.simai - 1).abs() < 0.03).all()


def test_ho_ring_saves_less_than_half_against_rings_on_all_cards() -> None:
    """Where a ring by hand over one card would make it 80 %. With more nodes the gain shrinks on a network without
    losses: to save a quarter NCCL's rings would have to reach 35 to 60 of the node's 56 GB/s."""
    rings = network.rings()
    all_cards = rings[rings.cards == 8].set_index("ranks")
    assert all_cards.saved.is_monotonic_decreasing
    assert 0.4 < all_cards.saved[16] < 0.5
    assert 0 < all_cards.saved[128] < 0.252
    one_card = rings[rings.cards == 1]
    assert (one_card.saved > 0.75).all()
    assert network.PIECE == CHUNK * 4


def test_the_command_keeps_its_tables(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "papers", "network", "--name", "here", "--runs", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    assert "Mean absolute error" in done.stdout
    kept = pd.read_csv(tmp_path / "here" / "network.csv")
    assert list(kept) == list(network.COLUMNS)
    assert list(pd.read_csv(tmp_path / "here" / "rings.csv")) == list(network.RING_COLUMNS)
