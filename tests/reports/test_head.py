"""A page that is sent around says what it is of, when and under what that ran, and which line was taken away."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from streamrace.frameworks.deepspeed.fixes import STOCK
from streamrace.reports.data import campaigns
from streamrace.reports.data.differences import taken_away
from streamrace.reports.data.loading import load
from streamrace.reports.pages import bundle, head, run_page
from tests.reports.campaign_folders import campaign
from tests.reports.run_folders import run_folder

AT = 1_700_000_000  # 2023-11-14 22:13:20


def test_the_head_of_a_report_says_when_what_and_that_nothing_was_hardware(tmp_path: Path) -> None:
    folders = [run_folder(tmp_path / "none"), run_folder(tmp_path / "stream-sync", clean=True)]
    for folder in folders:
        os.utime(folder / "findings.json", (AT, AT))
    runs = [load(folder) for folder in folders]
    found = head.of_runs(runs)
    assert found.title == "Stream race report: none, stream-sync"
    told = dict(found.facts)
    assert told["made"] == "2023-11-14 22:13 UTC"
    assert told["where"].startswith("on simulated GPUs: no GPU took part")
    assert told["where"].endswith("hardware profile a100-100gbps")
    assert told["taken away in none"] == STOCK
    assert "taken away in stream-sync" not in told and "by" not in told  # an earlier release did not note its version
    for text in (run_page.page(runs), bundle.report(runs)):
        assert "on simulated GPUs" in text and "2023-11-14 22:13 UTC" in text


def test_of_one_run_the_version_and_of_many_a_few_names(tmp_path: Path) -> None:
    folders = [run_folder(tmp_path / f"{at}", versions={"streamrace": "0.7.0"}) for at in range(6)]
    told = dict(head.of_runs([load(folders[0])]).facts)
    assert (told["by"], told["taken away"]) == ("streamrace 0.7.0", STOCK)
    assert head.of_runs([load(one) for one in folders]).title == "Stream race report: 0, 1, 2, 3 and 2 more"


def test_a_campaign_has_a_head_too(tmp_path: Path) -> None:
    made = campaigns.load(campaign(tmp_path / "fuzz-hpz", fix="event", diverged=0, timings=3))
    found = head.of_campaigns([made])
    assert found.title == "Timings report: fuzz-hpz"
    assert dict(found.facts)["taken away"].startswith(f"{STOCK}; instead, after each copy: ")


@pytest.mark.parametrize(
    ("scenario", "versions", "said"),
    [
        ({"fix": "none"}, {}, STOCK),
        ({"fix": "stream-sync"}, {}, ""),
        ({"fix": "fetch-sync"}, {}, f"{STOCK}; instead, at each fetch: "),
        ({"fix": "none"}, {"deepspeed": "0.13.4"}, ""),
        (
            {"fix": "stream-sync", "sharding": "IIG", "without": ["gather-before-use"]},
            {},
            "the synchronisations gather-",
        ),
        ({"sharding": "IIG", "without": []}, {}, ""),
        ({"program": "train.py"}, {}, ""),
        ({"fix": ["<b>"]}, {}, ""),
    ],
)
def test_what_was_taken_away_is_what_differs_from_the_released_program(
    scenario: dict[str, Any], versions: dict[str, str], said: str
) -> None:
    found = taken_away(scenario, versions)
    assert found.startswith(said) and bool(found) is bool(said)
