"""The report of the changed assumptions: what it says of a table."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
from PIL import Image

from streamrace.frameworks.deepspeed.releases import PINNED
from streamrace.reports.data.schema import ReportError
from streamrace.reports.pages.study_folder import load, note
from streamrace.reports.pages.study_page import StudyMetadata, brief, write
from streamrace.studies.why import AFFECTED, BASE


def row(
    release: str, assumption: str, value: str, slack_ms: float, flips: bool, gbits: float | None
) -> dict[str, object]:
    bad = int(slack_ms < 0)
    return {
        "release": release, "assumption": assumption, "value": value, "step_s": 19.0, "pairs": 400, "manifested": 300,
        "harmful": 75, "reversed": 5 * bad, "within_forward": 5 * bad, "slack_ms": slack_ms,
        "worst_ms": slack_ms if bad else None, "parameters": "layers.27 q" if bad else "", "from_gbits": gbits,
        "fits": True, "unexercised": "", "verdict": bool(bad), "flips": flips,
    }  # fmt: skip


ROWS = [
    row(AFFECTED, BASE, f"{AFFECTED} as released", -45.0, False, 0.0),
    row(AFFECTED, "loop", "reads nothing", -45.0, False, 0.0),
    row(AFFECTED, "prefetch bucket", "0 elements", 382.0, True, 31.0),
    row("0.13.5", "release", "0.13.5 as released", 1.0, True, None),
    row(PINNED, BASE, f"{PINNED} without its synchronisation", 155.0, False, 30.0),
    row(PINNED, "straggler", "this rank <b>", 147.0, False, 20.0),
    row(PINNED, "network", "50 Gbit/s", -1099.0, True, 30.0),
]


def folder_of(folder: Path, frame: pd.DataFrame) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    frame.to_csv(folder / "why.csv", index=False)
    options = {"model": "llama-2-7b", "nodes": 2, "gpus": 8, "hpz": 8, "loop": "trainer", "hardware": "a100"}
    ran = StudyMetadata(study="why", command="streamrace why", versions={}, options=options, hardware="A100")
    note(folder, ran)
    return folder


def test_the_page_says_which_changes_decide_and_from_which_bandwidth_on(tmp_path: Path) -> None:
    study = load(folder_of(tmp_path, pd.DataFrame(ROWS)))
    assert study.verdict == "1 of 2 changes decide" and study.tone == "bad"
    told = {fact.name: fact.value for fact in study.facts}
    assert told[f"decides, {AFFECTED}"] == "prefetch bucket: 0 elements"
    assert told[f"matters, {AFFECTED}"] == "at every bandwidth in 2 of 3 settings, from 31 … 31 Gbit/s on in 1"
    assert told[f"matters, {PINNED}"] == "from 20 … 30 Gbit/s on in 2", "another network is no other setting"
    page = write(study, tmp_path / "report")
    assert "this rank &lt;b&gt;" in page.read_text(encoding="utf-8")
    assert "layers.27 q" in brief(study)
    with Image.open(tmp_path / "report" / "why.png") as picture:
        assert picture.width > 500


def test_a_setting_in_which_hpz_never_ran_is_no_good_news(tmp_path: Path) -> None:
    idle = {**row(AFFECTED, "model", "a small one", 1.0, True, None), "harmful": 0, "unexercised": "hpZ: no copy"}
    study = load(folder_of(tmp_path, pd.DataFrame([*ROWS, idle])))
    assert study.sentence.endswith("In 1 of the settings that do not show it not all was exercised: hpZ: no copy.")
    assert "0 of 0, not all exercised" in brief(study)


def test_a_study_that_did_not_ask_what_was_exercised_is_read(tmp_path: Path) -> None:
    study = load(folder_of(tmp_path, pd.DataFrame(ROWS).drop(columns="unexercised")))
    assert "exercised" not in study.sentence


def test_a_table_without_the_setting_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ReportError, match=f"no row of DeepSpeed {AFFECTED} in the setting"):
        load(folder_of(tmp_path, pd.DataFrame(ROWS[1:])))
