"""The frame of placements: which is cheapest, which are not enough, and the picture of it. No run."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from streamrace.frameworks.deepspeed.fixes import Fix
from streamrace.reports.pictures import placements as placement_chart
from streamrace.reports.pictures.figures import png
from streamrace.repro.commands.study import command
from streamrace.scenarios.base import ScenarioError
from streamrace.studies import placements

ROWS = [
    # fix, race-free, seconds a step, host blocked, waited at the fix
    (Fix.NONE, False, 10.0, 9.0, 0.0),
    (Fix.STREAM_SYNC, True, 10.2, 9.2, 5.0),
    (Fix.EVENT, True, 10.1, 9.3, 0.0),
    (Fix.COPY_EVENT, True, 10.1, 9.1, 0.0),
    (Fix.TURN_SYNC, False, 10.0, 9.0, 1.0),
]


@pytest.fixture
def frame() -> pd.DataFrame:
    rows = [
        {"model": "m", "gbits": 100.0, "fix": str(fix), "where": "", "what": "", "race_free": free, "races": 1 - free,
         "manifested": 0, "pairs": "", "memory": "", "example": "", "step_s": step, "slowdown": step / 10.1,
         "host_blocked_s": blocked, "waits": 0, "waited_s": waited}
        for fix, free, step, blocked, waited in ROWS
    ]  # fmt: skip
    return pd.DataFrame(rows, columns=list(placements.COLUMNS))


def test_the_cheapest_is_race_free_and_blocks_the_host_less_where_steps_are_equal(frame: pd.DataFrame) -> None:
    assert placements.cheapest(frame).fix.tolist() == ["copy-event"]
    assert placements.insufficient(frame) == [Fix.NONE, Fix.TURN_SYNC]


def test_all_fixes_are_tried_by_default_and_the_large_model_on_one_network() -> None:
    found = placements.cases()
    assert {case.fix for case in found} == set(Fix)
    assert len(found) == len(Fix) * 4
    assert {case.gbits for case in found if case.model == "llama-2-70b"} == {100.0}


def test_the_picture_is_drawn_even_where_nothing_is_race_free(frame: pd.DataFrame, tmp_path: Path) -> None:
    for name, rows in {"all": frame, "racy": frame[~frame.race_free]}.items():
        png(placement_chart.charts({"placements": rows})["placements"].figure, tmp_path / f"{name}.png")
        assert (tmp_path / f"{name}.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("text", ["", "fast", "100,-1"])
def test_a_network_that_is_no_speed_is_refused_in_a_sentence(text: str) -> None:
    with pytest.raises(ScenarioError, match="--networks takes Gbit/s above 0"):
        command("placements").main(["--networks", text], standalone_mode=False)


def test_an_unknown_fix_is_refused_in_a_sentence() -> None:
    with pytest.raises(ScenarioError, match="unknown fix 'hope'"):
        command("placements").main(["--fixes", "event,hope"], standalone_mode=False)
