"""A report as a maintainer opens it: in a browser, from a file, without a network."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from playwright.sync_api import expect

from streamrace.reports.data.loading import load
from streamrace.repro.__main__ import main
from tests.housed import house
from tests.reports.run_folders import run_folder

Visit = Callable[..., Any]

# What Bokeh has drawn: the columns of all sources, arrays as lists.
SOURCES = """() => [...Bokeh.documents[0]._all_models.values()]
  .filter(model => model.type === "ColumnDataSource")
  .map(model => Object.fromEntries(Object.entries(model.data).map(([name, values]) => [name, Array.from(values)])))"""
RANGES = """() => [...Bokeh.documents[0]._all_models.values()]
  .filter(model => model.type === "Plot" || model.type === "Figure")
  .map(model => [model.x_range.start, model.x_range.end])"""


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``make compare``: the main scenario without its synchronisation, and as stock DeepSpeed has it."""
    folder = tmp_path_factory.mktemp("compared")
    wanted = ["--steps", "4", "--size", "tiny", "--ranks", "2", "--nodes", "1", "--runs", str(folder), "--overwrite"]
    done = house().run("-m", "streamrace", "compare", *wanted)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="module")
def report(compared: Path) -> Path:
    return compared / "compare" / "report"


@pytest.fixture(scope="module")
def findings(report: Path) -> dict[str, Any]:
    """Of the run that goes wrong, as the report has them for programs."""
    found: dict[str, Any] = json.loads((report / "findings.json").read_text())["runs"]["compare-none"]
    return found


def test_the_page_says_what_the_findings_say(report: Path, findings: dict[str, Any], visit: Visit) -> None:
    page = visit(report / "index.html").page
    assert page.inner_text("#verdict") == findings["verdict"] == "unstable"
    page.locator("details.others > summary").click()
    text = page.inner_text("main")
    wrong = findings["divergence"]["parameter"]
    assert f"from step {wrong['step']}" in page.inner_text("#headline")
    assert wrong["name"] in page.inner_text("#facts")
    for race in findings["races"]:
        for side in (race["first"], race["second"]):
            frame = side["stack"][0]
            assert f"{frame['file']}:{frame['line']} {frame['function']}" in text
        assert f"streamrace replay {race['witness']['token']}" in page.locator(".command").all_inner_texts()
    ran = page.locator("details", has_text="Configuration").first.text_content()
    assert f"{findings['profile']['inter_node_gbits_per_s']}" in ran
    assert "hardware profile: inter_node_gbits_per_s" in " ".join(ran.split())
    hits = page.locator(".source .hit").all_inner_texts()
    assert len(hits) == 2 * len(findings["races"])
    assert "copy_" in hits[0]
    assert str(findings["races"][0]["first"]["stack"][0]["line"]) in hits[0]


def test_the_runs_stand_side_by_side(report: Path, visit: Visit) -> None:
    table = visit(report / "index.html").page.locator("#runs")
    assert table.locator(".mark").all_inner_texts() == ["unstable", "clean"]
    assert "none" in table.inner_text()
    assert "stream-sync" in table.inner_text()


def test_the_curves_are_those_of_the_metrics(report: Path, visit: Visit) -> None:
    """The mean of each step over ranks and micro-batches, of each run in its place, and of the reference."""
    drawn = next(one for one in visit(report / "index.html").page.evaluate(SOURCES) if "mean0" in one)
    metrics = pd.read_csv(report / "metrics.csv")
    for place, run in enumerate(["compare-none", "compare-stream-sync"]):
        means = metrics[metrics.run == run].groupby("step")["loss"].mean()
        assert drawn["step"] == list(means.index)
        assert drawn[f"mean{place}"] == list(means)
    assert drawn["reference"] == drawn["mean1"]
    assert drawn["reference"] != drawn["mean0"]


def test_a_point_tells_its_value_and_the_chart_can_be_zoomed(report: Path, visit: Visit) -> None:
    page = visit(report / "index.html").page
    chart = page.locator(".bk-Figure").first
    chart.scroll_into_view_if_needed()
    box = chart.bounding_box()
    tooltip = page.locator(".bk-Tooltip >> visible=true")
    for across in np.linspace(0.1, 0.9, 33):
        for down in np.linspace(0.2, 0.8, 7):
            page.mouse.move(box["x"] + across * box["width"], box["y"] + down * box["height"])
            if tooltip.count():
                break
        if tooltip.count():
            break
    expect(tooltip.first).to_contain_text("step")
    before = page.evaluate(RANGES)
    page.locator(".bk-tool-icon-box-zoom").first.click()
    page.mouse.move(box["x"] + box["width"] / 3, box["y"] + box["height"] / 3)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 2 / 3, box["y"] + box["height"] * 2 / 3, steps=5)
    page.mouse.up()
    assert page.evaluate(RANGES) != before
    page.locator(".bk-tool-icon-reset").first.click()
    assert page.evaluate(RANGES) == before


def test_nothing_is_asked_for_and_nothing_fails(report: Path, visit: Visit) -> None:
    """In the light and in the dark, on a desk and on a phone."""
    seen = visit(report / "index.html")
    for width, scheme, axis in ((1000, "light", "linear"), (390, "dark", "logarithmic"), (1000, "dark", "linear")):
        seen.page.set_viewport_size({"width": width, "height": 800})
        seen.page.emulate_media(color_scheme=scheme)
        for name in ("loss", "norm"):
            seen.page.locator(f"label[for={name}-{axis}]").click()
        seen.fits(width)
    assert seen.asked == []
    assert seen.errors == []


def test_the_files_beside_it_say_the_same(report: Path, compared: Path) -> None:
    csv, parquet = pd.read_csv(report / "metrics.csv"), pd.read_parquet(report / "metrics.parquet")
    assert list(csv.columns) == list(parquet.columns)
    assert np.array_equal(csv["loss"], parquet["loss"])
    steps = load(compared / "compare-none").steps
    assert np.array_equal(csv[csv.run == "compare-none"]["loss"], steps["loss"])
    text = (report / "report.md").read_text()
    assert "unstable" in text
    assert "streamrace replay" in text
    assert list(report.glob("timeline-*.json.gz"))


def test_two_clean_runs_do_not_look_like_a_failure(compared: Path, tmp_path: Path, visit: Visit) -> None:
    clean = compared / "compare-stream-sync"
    main(["report", str(clean), "--output", str(tmp_path / "out")])
    page = visit(tmp_path / "out" / "index.html").page
    assert page.inner_text("#verdict") == "clean"
    assert page.inner_text("#headline").startswith("Nothing is wrong")
    assert page.locator("h1.good").count() == 1
    assert page.locator(".race").count() == 0


def test_a_run_of_our_own_engine_tells_its_strategy_instead_of_deepspeeds_fix(tmp_path: Path, visit: Visit) -> None:
    scenario = {"sharding": "IGG", "rings": "ho-ring", "without": [], "fix": "stream-sync"}
    folder = run_folder(tmp_path / "ours", clean=True, scenario=scenario)
    main(["report", str(folder), "--output", str(tmp_path / "out")])
    page = visit(tmp_path / "out" / "index.html").page
    rows = page.locator("#versions tr").all_inner_texts()
    assert "sharding\tIGG" in rows
    assert "rings\tho-ring" in rows
    assert not [row for row in rows if row.startswith("fix")]
