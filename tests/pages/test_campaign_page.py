"""What timings do to one recorded run, as a page: whether training goes wrong, in how many ways, under which fix."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from streamrace.repro.__main__ import main
from tests.reports.campaign_folders import TOKEN, campaign
from tests.reports.run_folders import run_folder

Visit = Callable[..., Any]


def report(tmp_path: Path, *folders: Path) -> Path:
    main(["report", *map(str, folders), "--output", str(tmp_path / "out")])
    return tmp_path / "out"


def test_a_campaign_says_what_it_tried_and_claims_no_rate_of_all_timings(tmp_path: Path, visit: Visit) -> None:
    out = report(tmp_path, campaign(tmp_path / "fuzz-hpz", fix="none", diverged=12, timings=60))
    seen = visit(out / "index.html")
    page = seen.page
    assert "under 12 of 60 timings it goes wrong, in 5 ways." in page.inner_text("#headline")
    assert "12 of 60" in page.inner_text("#matrix")
    assert "%" not in page.inner_text("#matrix") and "confidence" not in page.inner_text("main")
    assert f"streamrace replay {TOKEN}" in page.locator(".command").all_inner_texts()
    assert "harmful" in page.inner_text("main")
    assert page.locator(".edge > svg").count() == 1
    assert (seen.errors, seen.asked) == ([], [])
    assert len(pd.read_parquet(out / "metrics.parquet")) == 60
    assert "| 12 of 60 |" in (out / "report.md").read_text()


def test_a_fix_under_which_no_timing_changes_a_bit(tmp_path: Path, visit: Visit) -> None:
    out = report(tmp_path, campaign(tmp_path / "fuzz-hpz", fix="event", diverged=0, timings=500))
    page = visit(out / "index.html").page
    assert page.inner_text("#verdict") == "clean"
    assert "none of 500 timings changes a bit" in page.inner_text("#headline")
    assert page.locator("h1.good").count() == 1
    assert "0 of 500" in page.inner_text("#matrix")


def test_campaigns_and_runs_fill_one_matrix(tmp_path: Path, visit: Visit) -> None:
    folders = [run_folder(tmp_path / "stock", clean=True), run_folder(tmp_path / "without")]
    folders.append(campaign(tmp_path / "fuzz-none", fix="none", diverged=3, timings=10))
    out = report(tmp_path, *folders)
    page = visit(out / "index.html").page
    assert page.inner_text("#verdict") == "unstable"
    cells = {
        row.locator("th").inner_text(): row.locator("td .mark, td > .soft").all_inner_texts()
        for row in page.locator("#matrix tbody tr").all()
    }
    assert cells["stream-sync"][0] == "0 of 1"
    assert "not tried" in cells["stream-sync"]
    assert {"1 of 1", "3 of 10"} <= set(cells["none"])


def test_campaigns_of_our_own_engine_are_named_by_strategy_and_waits(tmp_path: Path, visit: Visit) -> None:
    folders = [
        campaign(tmp_path / "whole", fix="stream-sync", diverged=0, timings=9, sharding="IIG", without=[]),
        campaign(
            tmp_path / "less", fix="stream-sync", diverged=4, timings=9, sharding="IIG", without=["gather-before-use"]
        ),
    ]
    page = visit(report(tmp_path, *folders) / "index.html").page
    told = page.inner_text("#headline")
    assert told.startswith("With IIG without gather-before-use it depends on timing")
    assert told.endswith("With IIG no timing changes a bit.")
    rows = page.locator("#matrix tbody tr th").all_inner_texts()
    assert rows == ["IIG", "IIG without gather-before-use"]


def test_campaigns_of_other_programs_are_not_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = campaign(tmp_path / "a", fix="none", diverged=1, timings=2)
    second = campaign(tmp_path / "b", fix="none", diverged=1, timings=2, model="falcon")
    with pytest.raises(SystemExit) as error:
        main(["report", str(first), str(second)])
    assert error.value.code == 2
    assert "they differ in model" in capsys.readouterr().err


def test_timings_that_somebody_changed_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = campaign(tmp_path / "a", fix="none", diverged=1, timings=2)
    data = json.loads((folder / "timings.json").read_text())
    data["campaign"]["rows"][0]["wrong_values"] = "<b>many</b>"
    (folder / "timings.json").write_text(json.dumps(data))
    with pytest.raises(SystemExit) as error:
        main(["report", str(folder)])
    assert error.value.code == 2
    assert "campaign.rows.0.wrong_values" in capsys.readouterr().err
