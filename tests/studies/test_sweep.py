"""A sweep: networks by micro-batches, hpZ with each fix against ZeRO-3."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
from PIL import Image

from streamrace.frameworks.deepspeed.fixes import Fix
from streamrace.reports.pictures import sweep as sweep_charts
from streamrace.reports.pictures.figures import png
from streamrace.studies import sweep as study
from tests.studies.small import small

NETWORKS = (1.0, 25.0, 400.0)


@pytest.fixture(scope="module")
def frame(tmp_path_factory: pytest.TempPathFactory) -> pd.DataFrame:
    folder = tmp_path_factory.mktemp("sweep")
    fixes = (Fix.NONE, Fix.STREAM_SYNC)
    return study.sweep(small(folder), folder, networks=NETWORKS, micro_batches=(1, 4), fixes=fixes, workers=1)


def test_every_point_is_there_once(frame: pd.DataFrame) -> None:
    assert len(frame) == 3 * 2 * 3
    assert not frame.duplicated(["configuration", "network", "micro_batch"]).any()
    assert (frame.groupby(["configuration", "micro_batch"]).step_s.diff().dropna() <= 0).all(), "faster networks"


def test_the_race_is_told_for_hpz_without_a_fix_alone(frame: pd.DataFrame) -> None:
    racing = frame[frame.pairs > 0]
    assert set(racing.configuration) == {"hpZ none"}
    assert ((racing.manifested > 0) == (racing.slack_us < 0)).all()


def test_every_point_says_that_all_of_it_was_exercised(frame: pd.DataFrame) -> None:
    assert set(frame.unexercised) == {""}


def test_hpz_gains_on_a_slow_network_what_it_saves_on_it(frame: pd.DataFrame) -> None:
    """One gather of three is saved where communication is all that counts: 3/2 (arXiv 2407.01614, derived)."""
    gains = study.gain(frame)
    assert 1.3 < gains.loc[1, 1.0] <= 1.5
    assert gains.loc[4, 400.0] < gains.loc[4, 1.0]


def test_where_hpz_stops_paying_lies_between_two_networks() -> None:
    rows = [
        {"configuration": configuration, "network": network, "micro_batch": 1, "step_s": seconds}
        for configuration, times in {"hpZ stream-sync": (1.0, 1.0, 1.0), study.ZERO3: (1.5, 1.15, 1.0)}.items()
        for network, seconds in zip((1.0, 10.0, 100.0), times, strict=True)
    ]
    end = study.stops_paying(pd.DataFrame(rows))[1]
    assert end == pytest.approx(10 * 10 ** (2 / 3))


def test_the_pictures_are_drawn(frame: pd.DataFrame, tmp_path: Path) -> None:
    for chart in sweep_charts.charts({"sweep": frame}).values():
        path = tmp_path / "drawn.png"
        png(chart.figure, path)
        with Image.open(path) as picture:
            assert picture.width > 500 and len(picture.convert("RGB").getcolors(1 << 24) or ()) > 20
