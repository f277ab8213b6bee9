"""The reports of studies as a reader opens them: in a browser, from a file, without a network."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import expect

from streamrace.reports.pages.html import shortened
from streamrace.reports.pages.study_folder import load
from streamrace.reports.pages.study_page import write
from streamrace.trace.untrusted import visible
from tests.reports import study_folders as make

Visit = Callable[..., Any]

HOSTILE = '<script>alert(1)</script><b>"\u202egnp' + "x" * 700


def sweep(folder: Path) -> Path:
    return make.sweep_folder(folder, model=HOSTILE)


def placements(folder: Path) -> Path:
    return make.placements_folder(folder, make.placements_frame(HOSTILE), make.sites_frame(HOSTILE))


def releases(folder: Path) -> Path:
    kinds: dict[str, Any] = {"0.13.4": ("race", "race"), "0.18.2": ("clean", "stale"), HOSTILE: HOSTILE}
    return make.releases_folder(folder, {**kinds, "0.19.8": ("clean", "clean")})


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The pages by study; in each a name that would like to be more."""
    folder = tmp_path_factory.mktemp("studies")
    return {
        made.__name__: write(load(made(folder / made.__name__)), folder / made.__name__ / "report")
        for made in (sweep, placements, releases)
    }


each_study = pytest.mark.parametrize("study", ["sweep", "placements", "releases"])


@each_study
def test_nothing_is_asked_for_and_nothing_fails(reports: dict[str, Path], visit: Visit, study: str) -> None:
    """In the light and in the dark, on a desk and on a phone."""
    seen = visit(reports[study])
    for width, scheme in ((1000, "light"), (390, "light"), (390, "dark"), (1000, "dark")):
        seen.page.set_viewport_size({"width": width, "height": 800})
        seen.page.emulate_media(color_scheme=scheme)
        expect(seen.page.locator(".chart img, table.rows").first).to_be_visible()
        assert seen.page.evaluate("[...document.images].every(one => one.complete && one.naturalWidth > 0)")
        seen.fits(width)
    assert seen.asked == []
    assert seen.errors == []


@each_study
def test_the_page_says_what_the_findings_say(reports: dict[str, Path], visit: Visit, study: str) -> None:
    page = visit(reports[study]).page
    found = json.loads((reports[study].parent / "findings.json").read_text(encoding="utf-8"))
    assert page.inner_text("#verdict") == found["verdict"]
    assert page.locator(f"h1.{found['tone']}").count() == 1
    assert page.inner_text(".command") == found["command"]
    assert found["versions"]["python"] in page.inner_text("#versions")
    assert page.inner_text("#headline") == visible(shortened(found["sentence"]))


def rows(page: Any, caption: str) -> dict[str, list[str]]:
    """A table's rows, by their first cells."""
    found = page.locator("section", has=page.locator("h3", has_text=caption)).locator("tbody tr").all()
    return {row.locator("th").inner_text(): row.locator("td").all_inner_texts() for row in found}


def test_a_setting_of_the_sweep_tells_gain_race_and_slack(reports: dict[str, Path], visit: Visit) -> None:
    page = visit(reports["sweep"]).page
    assert rows(page, "How many times as fast")["1"][0] == "1.40"
    found = rows(page, "Every setting without a fix")
    latent, manifested = found["1 Gbit/s, micro-batch 1"], found["100 Gbit/s, micro-batch 4"]
    assert latent[:2] == ["0 of 8 reversed", "1.5 ms apart"]
    assert manifested[:2] == ["8 of 8 reversed", "reversed by 2.5 ms"]
    assert "does not fit" in manifested[-1]


def test_a_setting_of_the_sweep_tells_both_throughputs(reports: dict[str, Path], visit: Visit) -> None:
    found = rows(visit(reports["sweep"]).page, "Every setting without a fix")
    known = make.sweep_frame().set_index(["configuration", "network", "micro_batch"]).tokens_per_second
    for batch in (1, 4):
        ours, theirs = known["hpZ stream-sync", 100, batch], known["ZeRO-3", 100, batch]
        assert found[f"100 Gbit/s, micro-batch {batch}"][3:5] == [f"{ours:,.0f}", f"{theirs:,.0f}"]


def test_a_row_of_the_placements_tells_what_each_job_waits(reports: dict[str, Path], visit: Visit) -> None:
    page = visit(reports["placements"]).page
    for network in ("12.5", "100"):
        found = rows(page, f"{network} Gbit/s between nodes")
        assert found["turn-sync"][0] == "6, 3 manifested"
        assert found["turn-sync"][-2:] == ["291", "4.500 s"]
    assert rows(page, "Which places are enough")["stream-sync"][1:3] == ["+2.00 ms", "+2.00 ms"]


def test_a_field_of_the_releases_tells_the_evidence(reports: dict[str, Path], visit: Visit) -> None:
    page = visit(reports["releases"]).page
    found = rows(page, "What was found in which release")
    assert found["0.13.4, plain"][:4] == ["found", "no", "no", "found"]
    evidence = found["0.13.4, plain"][4]
    assert "partition_parameters.py:1946" in evidence and "wrong from step 2" in evidence
    assert "backward of step 2 holds values of step 1" in found["0.18.2, padded + edit"][4]
    assert found["0.19.8, plain"] == ["no", "no", "no", "no", ""]


def test_a_word_tells_its_meaning(reports: dict[str, Path], visit: Visit) -> None:
    page = visit(reports["placements"]).page
    meaning = page.locator("table.rows abbr", has_text="carries load").first.get_attribute("title")
    assert meaning is not None
    assert "a race is found" in meaning
