"""The largest micro-batch that fits, and from how many GPUs on hpZ pays with its own."""

from __future__ import annotations

import math
from pathlib import Path

import pandas as pd
import pytest

from papers.studies import batches
from papers.studies.batches import crossings, gains, study
from papers.studies.depth_extrapolation import Line, Shortened
from papers.studies.sensitivity import Variation
from streamrace.scenarios.job import Job
from streamrace.scenarios.models import FULL_SIZE
from streamrace.studies.memory import GIB

MODEL = "llama-2-7b"


def measured(job: Job, folder: Path, *, variations: list[Variation]) -> Shortened:
    """A machine by a formula: states cut into as many parts as ranks, hpZ's copy, and 1.5 GiB a sequence from 4 on."""
    parameters = FULL_SIZE[MODEL].parameters
    copy = 2 * parameters / job.hpz if job.hpz > 1 else 0.0
    sequences = max(1.0 * job.micro_batch + 2, 1.5 * job.micro_batch) * GIB
    gathers = 2 if job.hpz > 1 else 3
    layers = FULL_SIZE[MODEL].layers

    def line(value: float) -> Line:
        return Line((layers, layers), (1, 1), {(layers, 1): value})

    return Shortened(
        {one: line(max(0.5 * job.micro_batch, gathers * 80 / (one.network or 1))) for one in variations},
        line(16 * parameters / job.ranks + copy + sequences),
        line(1.0),
    )


@pytest.fixture
def frame(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> pd.DataFrame:
    monkeypatch.setattr(batches, "shortened", measured)
    return study(tmp_path, models=[MODEL], ranks=[16, 64], cards=[8, 40], networks=[10.0, 1000.0], workers=1)


def test_the_largest_micro_batch_fits_and_the_next_one_does_not(frame: pd.DataFrame) -> None:
    parameters = FULL_SIZE[MODEL].parameters
    assert len(frame) == 2 * 2 * 2 * 2
    for row in frame.itertuples():
        states = 16 * parameters / row.ranks + (2 * parameters / row.hpz if row.hpz > 1 else 0)

        def peak(sequences: int, states: float = states) -> float:
            return states + max(sequences + 2.0, 1.5 * sequences) * GIB

        if row.micro_batch:
            assert peak(row.micro_batch) <= row.card * GIB < peak(row.micro_batch + 1)
            assert row.peak_gib == pytest.approx(peak(row.micro_batch) / GIB)
        else:
            assert peak(1) > row.card * GIB and math.isnan(row.step_s)


def test_hpz_pays_where_it_fits_and_the_network_is_what_counts(frame: pd.DataFrame) -> None:
    gained = gains(frame).set_index(["card", "network", "ranks"])
    assert gained.loc[(40, 10.0, 64)].gain > 1  # two gathers instead of three, and nearly as many sequences
    assert gained.loc[(40, 1000.0, 64)].gain == pytest.approx(1.0)  # nothing is waited for
    small = gained.loc[(8, 10.0, 16)]
    assert small.hpz_batch == 0 and (small.gain == 0 if small.zero3_batch else math.isnan(small.gain))


def test_the_crossing_is_the_number_of_gpus_from_which_on_it_is_always_faster() -> None:
    rows = [
        (16, 0, 0, math.nan),
        (32, 1, 0, 0.0),
        (64, 4, 2, 1.2),
        (128, 5, 3, 0.9),
        (256, 6, 5, 1.1),
        (512, 6, 5, 1.2),
    ]
    gained = pd.DataFrame(rows, columns=["ranks", "zero3_batch", "hpz_batch", "gain"]).assign(
        model=MODEL, card=80, network=100.0
    )
    (found,) = crossings(gained).to_dict("records")
    assert (found["fits_from"], found["pays_from"], found["most_lost"]) == (32, 256, 0.9)
    never = crossings(gained.assign(gain=1.0)).iloc[0]
    assert math.isnan(never.pays_from)
