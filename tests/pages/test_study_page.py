"""The reports of studies as a reader opens them: in a browser, from a file, without a network."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import expect

from reports.pages.html import shortened, visible
from reports.pages.study_folder import load
from reports.pages.study_page import write
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
@pytest.mark.parametrize("width", [1000, 390])
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_nothing_is_asked_for_and_nothing_fails(
    reports: dict[str, Path], visit: Visit, study: str, width: int, dark: bool
) -> None:
    seen = visit(reports[study], width=width, dark=dark)
    expect(seen.page.locator(".bk-Figure canvas").first).to_be_visible()
    assert seen.asked == []
    assert seen.errors == []
    assert seen.page.evaluate("document.documentElement.scrollWidth") <= width


@each_study
def test_the_page_says_what_the_findings_say(reports: dict[str, Path], visit: Visit, study: str) -> None:
    page = visit(reports[study]).page
    found = json.loads((reports[study].parent / "findings.json").read_text(encoding="utf-8"))
    assert page.inner_text("#verdict") == found["verdict"]
    assert page.locator(f"h1.{found['tone']}").count() == 1
    assert page.inner_text(".command") == found["command"]
    assert found["versions"]["python"] in page.inner_text("#versions")
    assert page.inner_text("#headline") == visible(shortened(found["sentence"]))


# Where a point of the chart's axes lies on the screen.
PLACE = """([chart, x, y]) => {
  const view = [...Bokeh.index.roots].filter(root => root.model.type === "Figure")[chart];
  const box = view.el.getBoundingClientRect();
  return [box.x + view.frame.x_scale.compute(x), box.y + view.frame.y_scale.compute(y)];
}"""


def told(page: Any, chart: int, x: Any, y: Any) -> str:
    """What the pointer is told there."""
    page.locator(".bk-Figure").nth(chart).scroll_into_view_if_needed()
    page.mouse.move(*page.evaluate(PLACE, [chart, x, y]))
    tooltip = page.locator(".bk-Tooltip >> visible=true")
    expect(tooltip).to_have_count(1)
    return str(tooltip.evaluate("tooltip => tooltip.shadowRoot.textContent"))


def test_a_field_of_the_sweep_tells_gain_race_and_margin(reports: dict[str, Path], visit: Visit) -> None:
    page = visit(reports["sweep"]).page
    hidden, shown = told(page, 0, "1", "1"), told(page, 0, "100", "4")
    assert "gain 1.40" in hidden
    assert "race hidden" in hidden
    assert "closest: 1.5 ms apart" in hidden
    assert "8 of 8 unordered pairs reversed" in shown
    assert "closest: reversed by 2.5 ms" in shown
    assert "does not fit" in shown


def test_the_curves_tell_what_they_are_at_a_network(reports: dict[str, Path], visit: Visit) -> None:
    """All of them at once: curves that coincide would hide each other's values."""
    page = visit(reports["sweep"]).page
    assert told(page, 1, 10, 1.3).count(": 1.200") == 2
    rows = make.sweep_frame().set_index(["configuration", "network", "micro_batch"]).tokens_per_second
    text = told(page, 2, 100, 1000)
    for batch in (1, 4):
        ours, theirs = rows["hpZ stream-sync", 100, batch], rows["ZeRO-3", 100, batch]
        assert f"micro-batch {batch}: {ours:,.0f}, ZeRO-3: {theirs:,.0f}" in text


def test_a_row_of_the_placements_tells_what_each_job_waits(reports: dict[str, Path], visit: Visit) -> None:
    page = visit(reports["placements"]).page
    for chart in (0, 1):
        text = told(page, chart, 1.0, "turn-sync")
        assert text.count("race: 6 times, 3 shown") == 2, "two networks"
        assert "100 Gbit/s" in text
    assert text.count("291 times, 4.500 s") == 2
    assert "+2.00 ms" in told(page, 0, 1.0, "stream-sync")


def test_a_field_of_the_releases_tells_the_evidence(reports: dict[str, Path], visit: Visit) -> None:
    page = visit(reports["releases"]).page
    assert "partition_parameters.py:1946" in told(page, 0, ["plain", "race"], "0.13.4")
    assert "backward of step 2 holds values of step 1" in told(page, 0, ["padded + edit", "stale"], "0.18.2")
    assert "not found" in told(page, 0, ["plain", "stale"], "0.19.8")


def test_a_word_tells_its_meaning(reports: dict[str, Path], visit: Visit) -> None:
    page = visit(reports["placements"]).page
    meaning = page.locator("table.rows abbr", has_text="carries load").first.get_attribute("title")
    assert meaning is not None
    assert "a race is found" in meaning
